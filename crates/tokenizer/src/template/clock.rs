//! `strftime` over UTC, the part of it that templates use.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A moment in UTC, taken apart.
struct Civil {
    year: i64,
    /// 1 to 12.
    month: u32,
    /// 1 to 31.
    day: u32,
    /// Monday is 0.
    weekday: u32,
    /// 1 to 366.
    day_of_year: u32,
    seconds: u32,
    micros: u32,
}

impl Civil {
    fn new(time: SystemTime) -> Self {
        // Before the epoch there is no "now"; such a clock is wrong and shows as 1970.
        let since: Duration = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let days = (since.as_secs() / 86_400) as i64;
        // Gregorian years of 400 repeat after 146,097 days; days are counted from 1 March 0000, so
        // that a leap day is the last of its year.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * from_march + 2) / 153;
        let day = (from_march - (153 * month_from_march + 2) / 5 + 1) as u32;
        let month = ((month_from_march + 2) % 12 + 1) as u32;
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let before =
            if from_march >= 306 { from_march - 306 } else { from_march + 59 + i64::from(leap) };
        Self {
            year,
            month,
            day,
            weekday: (days + 3).rem_euclid(7) as u32,
            day_of_year: before as u32 + 1,
            seconds: (since.as_secs() % 86_400) as u32,
            micros: since.subsec_micros(),
        }
    }
}

/// Formats a time in UTC as Python's `strftime` does in the C locale. Directives it does not know
/// stay as they are written.
pub(crate) fn strftime(time: SystemTime, format: &str) -> String {
    let civil = Civil::new(time);
    let (hour, minute, second) =
        (civil.seconds / 3_600, civil.seconds / 60 % 60, civil.seconds % 60);
    let twelve = (hour + 11) % 12 + 1;
    let (day_name, month_name) =
        (DAYS[civil.weekday as usize % 7], MONTHS[(civil.month as usize + 11) % 12]);
    let mut text = String::new();
    let mut rest = format.chars();
    while let Some(char) = rest.next() {
        if char != '%' {
            text.push(char);
            continue;
        }
        let mut ahead = rest.clone();
        let mut directive = ahead.next();
        // `%-d` is glibc's: no padding.
        let bare = directive == Some('-');
        if bare {
            directive = ahead.next();
        }
        let number = |value: u32, width: usize| {
            if bare { value.to_string() } else { format!("{value:0width$}") }
        };
        let written = match directive {
            Some('Y') => civil.year.to_string(),
            Some('y') => number(civil.year.rem_euclid(100) as u32, 2),
            Some('m') => number(civil.month, 2),
            Some('d') => number(civil.day, 2),
            Some('e') if bare => civil.day.to_string(),
            Some('e') => format!("{:2}", civil.day),
            Some('j') => number(civil.day_of_year, 3),
            Some('H') => number(hour, 2),
            Some('I') => number(twelve, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('f') => number(civil.micros, 6),
            Some('p') => (if hour < 12 { "AM" } else { "PM" }).to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('u') => (civil.weekday + 1).to_string(),
            Some('w') => ((civil.weekday + 1) % 7).to_string(),
            Some('F') => strftime(time, "%Y-%m-%d"),
            Some('T') => strftime(time, "%H:%M:%S"),
            Some('D') => strftime(time, "%m/%d/%y"),
            Some('R') => strftime(time, "%H:%M"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('n') => "\n".to_owned(),
            Some('t') => "\t".to_owned(),
            Some('%') => "%".to_owned(),
            _ => {
                text.push('%');
                continue;
            }
        };
        text.push_str(&written);
        rest = ahead;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::strftime;
    use std::time::{Duration, UNIX_EPOCH};

    fn at(seconds: u64, format: &str) -> String {
        strftime(UNIX_EPOCH + Duration::from_secs(seconds), format)
    }

    #[test]
    fn dates_are_the_gregorian_calendars() {
        assert_eq!(at(0, "%F %T %A %j"), "1970-01-01 00:00:00 Thursday 001");
        assert_eq!(at(951_782_400, "%d %B %Y, %a, %j"), "29 February 2000, Tue, 060");
        assert_eq!(at(1_735_689_599, "%Y-%m-%d %H:%M:%S %j %w"), "2024-12-31 23:59:59 366 2");
        assert_eq!(at(4_107_542_400, "%F %a"), "2100-03-01 Mon");
        assert_eq!(at(4_107_456_000, "%F %j"), "2100-02-28 059");
    }

    #[test]
    fn directives_are_pythons() {
        let noon = 1_709_467_509; // 3 March 2024, 12:05:09
        assert_eq!(at(noon, "%d %b %y %I:%M %p %-d %e %-I"), "03 Mar 24 12:05 PM 3  3 12");
        assert_eq!(at(noon, "%% %Q %"), "% %Q %");
        assert_eq!(at(noon, "%f %Z %z %D %R %u"), "000000 UTC +0000 03/03/24 12:05 7");
    }
}
