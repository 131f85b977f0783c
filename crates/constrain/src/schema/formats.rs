//! `format`: the forms that are known, each by a pattern that no checker of the form refuses.
//!
//! Forms are narrower here than their standards where checkers differ or where a model has no use
//! for the rest: years have four digits and no leading zero, seconds do not leap, mail addresses
//! and hosts are of the usual shape, and a `uri` has a host.

/// The pattern of a format.
pub(crate) fn pattern(format: &str) -> Option<String> {
    Some(match format {
        "date" => format!("^{DATE}$"),
        "time" => format!("^{TIME}$"),
        "date-time" => format!("^{DATE}T{TIME}$"),
        "uuid" => {
            "^[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$".into()
        }
        "ipv4" => format!(r"^{BYTE}(?:\.{BYTE}){{3}}$"),
        "hostname" => format!("^{NAME}$"),
        "email" => format!(r"^{MAILBOX}(?:\.{MAILBOX})*@{HOST}$"),
        "uri" => format!(
            r"^https?://{HOST}(?::[1-9][0-9]{{0,3}})?(?:/{PATH}*)*(?:\?{PATH}*)?(?:#{PATH}*)?$"
        ),
        _ => return None,
    })
}

/// The known formats, for a message.
pub(crate) const KNOWN: &str = "date, time, date-time, uuid, ipv4, hostname, email and uri";

const DATE: &str = concat!(
    r"(?:[1-9]\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)",
    r"|02-(?:0[1-9]|1\d|2[0-8]))|(?:[1-9]\d(?:0[48]|[2468][048]|[13579][26])",
    r"|(?:[2468][048]|[13579][26])00)-02-29)"
);
const TIME: &str =
    r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[+\-](?:0\d|1[0-4]):[0-5]\d)";
const BYTE: &str = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)";
const MAILBOX: &str = r"[A-Za-z0-9_+\-]+";
/// Labels without double dashes, so that none is mistaken for an encoded one; the last is of
/// letters, so that the whole is not mistaken for an address.
const HOST: &str = r"(?:[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*\.)+[A-Za-z]{2,24}";
/// The same, short enough for a name in the domain name system.
const NAME: &str = r"(?:[A-Za-z0-9]{1,30}(?:-[A-Za-z0-9]{1,30})?\.){1,3}[A-Za-z]{2,24}";
const PATH: &str = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@\-]|%[0-9A-Fa-f]{2})";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dfa::node_to_dfa;
    use crate::limits::Limits;
    use crate::schema::pattern::search;

    #[test]
    fn formats_hold_their_usual_texts_and_no_wrong_ones() {
        for (format, yes, no) in [
            (
                "date",
                vec!["2024-02-29", "2000-02-29", "1999-12-31"],
                vec!["2023-02-29", "1900-02-29", "2024-04-31", "2024-13-01", "0000-01-01"],
            ),
            (
                "time",
                vec!["12:00:00Z", "23:59:59.123+05:30"],
                vec!["24:00:00Z", "12:00:00", "12:00:60Z"],
            ),
            ("date-time", vec!["2024-02-29T12:00:00Z"], vec!["2024-02-29 12:00:00Z", "2024-02-29"]),
            (
                "uuid",
                vec!["123e4567-e89b-12d3-a456-426614174000"],
                vec!["123e4567-e89b-12d3-a456-42661417400", "123e4567e89b12d3a456426614174000"],
            ),
            ("ipv4", vec!["0.0.0.0", "255.10.1.99"], vec!["256.0.0.0", "1.2.3", "01.2.3.4"]),
            ("hostname", vec!["example.org", "a-b.c.dev"], vec!["-a.org", "a..org", "localhost."]),
            (
                "email",
                vec!["a.b+c@example.org"],
                vec!["a@b", ".a@b.org", "a..b@c.org", "a b@c.org"],
            ),
            (
                "uri",
                vec!["https://example.org", "http://a.io:80/x%20y?q=1#f"],
                vec!["example.org", "https://", "https://a.io/%zz", "ftp://a.io"],
            ),
        ] {
            let pattern = pattern(format).unwrap();
            let found = search(&pattern, &mut Limits::default());
            let Ok(found) = found else { panic!("{format}: {pattern}") };
            let dfa = node_to_dfa(&found.node, &Limits::default()).unwrap().unwrap();
            for text in yes {
                assert!(dfa.matches(text.as_bytes()), "{text} is a {format}");
            }
            for text in no {
                assert!(!dfa.matches(text.as_bytes()), "{text} is no {format}");
            }
        }
    }
}
