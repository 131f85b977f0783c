//! IEEE half precision, in software: what the portable tier computes with and what the hardware
//! conversions of the other tiers must equal bit for bit (both round to nearest, ties to even).

/// The value of a half's bits, exactly.
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let rest = u32::from(bits & 0x7fff) << 13;
    let exponent = rest & (0x7c00 << 13);
    if exponent == 0x7c00 << 13 {
        // Infinity, or NaN (made quiet, as the hardware does).
        let quiet = if rest & 0x007f_ffff != 0 { 0x0040_0000 } else { 0 };
        return f32::from_bits(sign | 0x7f80_0000 | rest & 0x007f_ffff | quiet);
    }
    // Re-biasing by a multiplication handles subnormal halves too.
    f32::from_bits(sign | (f32::from_bits(rest) * f32::from_bits((254 - 15) << 23)).to_bits())
}

/// The half nearest to `value`, ties to even; values beyond the range become infinite.
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00 | (magnitude >> 13 & 0x03ff) as u16;
    }
    // 65520 is the smallest number that rounds beyond the largest half, 65504.
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // Subnormal (or zero): adding 0.5 aligns the half's last bit with the sum's last bit, and
        // the addition does the rounding.
        let sum = f32::from_bits(magnitude) + 0.5;
        return sign | (sum.to_bits() - 0x3f00_0000) as u16;
    }
    let odd = magnitude >> 13 & 1;
    sign | ((magnitude - (112 << 23) + 0x0fff + odd) >> 13) as u16
}

/// The value of a bfloat16's bits, exactly.
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives_the_way_through_f32() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            if value.is_nan() {
                assert!(f16_to_f32(f32_to_f16(value)).is_nan());
            } else {
                assert_eq!(f32_to_f16(value), bits, "{bits:#06x}");
            }
        }
    }

    #[test]
    fn rounding_is_to_nearest_with_ties_to_even() {
        // Between every two neighbouring finite halves: just below, at and just above the middle.
        for bits in 0..0x7bff_u16 {
            let (low, high) = (f64::from(f16_to_f32(bits)), f64::from(f16_to_f32(bits + 1)));
            let middle = f64::midpoint(low, high) as f32;
            let even = if bits % 2 == 0 { bits } else { bits + 1 };
            assert_eq!(f32_to_f16(middle), even);
            assert_eq!(f32_to_f16(middle.next_down()), bits);
            assert_eq!(f32_to_f16(middle.next_up()), bits + 1);
            assert_eq!(f32_to_f16(-middle), even | 0x8000);
        }
        assert_eq!(f32_to_f16(65519.99), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(f32::INFINITY), 0x7c00);
    }
}
