//! Which instructions the kernels use: found out once, or forced for tests.
//!
//! A tier is a set of kernels for a set of CPU features. All tiers compute the same numbers, bit
//! for bit (see `simd.rs` and `matmul/mod.rs`), so the choice is about speed alone.
//!
//! A [`Cpu`] is the proof that its tier runs here: it can only be had from detection, and every
//! kernel entry takes one. That is what makes the calls into feature-specific code sound.

use std::sync::OnceLock;

use crate::error::KernelError;

/// A set of kernels, in ascending order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Plain Rust that LLVM vectorises: every architecture.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// The above and AMX int8 tiles.
    Amx,
}

impl Tier {
    /// All tiers, ascending.
    pub const ALL: [Tier; 4] = [Tier::Portable, Tier::Avx2, Tier::Avx512, Tier::Amx];

    /// The name by which `TINYLLM_CPU` asks for it.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Portable => "portable",
            Tier::Avx2 => "avx2",
            Tier::Avx512 => "avx512",
            Tier::Amx => "amx",
        }
    }
}

/// A tier that this machine is known to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu(Tier);

impl Cpu {
    /// The best tier of this machine.
    pub fn detect() -> Cpu {
        // The portable tier is always there.
        *Cpu::available().last().unwrap_or(&Cpu(Tier::Portable))
    }

    /// Every tier of this machine, ascending.
    pub fn available() -> Vec<Cpu> {
        Tier::ALL.into_iter().filter(|&tier| missing(tier).is_none()).map(Cpu).collect()
    }

    /// The tier.
    pub fn tier(self) -> Tier {
        self.0
    }
}

/// What was chosen and why, as plain data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuReport {
    /// The tier in use.
    pub cpu: Cpu,
    /// Whether it was asked for, rather than found to be the best.
    pub forced: bool,
    /// The architecture this was compiled for.
    pub architecture: &'static str,
    /// Every tier, ascending, with what it lacks here (`None`: it runs).
    pub tiers: Vec<(Tier, Option<String>)>,
    /// What fast prefill lacks with the tier in use (`None`: it runs).
    pub fast_prefill: Option<String>,
}

/// Chooses the tier: the best one, or the one that `requested` (the text of `TINYLLM_CPU`) names.
///
/// # Errors
/// A name that is none of the tiers', and a tier that this CPU lacks.
pub fn choose(requested: Option<&str>) -> Result<CpuReport, KernelError> {
    let report = |cpu, forced| CpuReport {
        cpu,
        forced,
        architecture: std::env::consts::ARCH,
        tiers: Tier::ALL.into_iter().map(|tier| (tier, missing(tier))).collect(),
        fast_prefill: missing_for_fast_prefill(cpu),
    };
    let Some(requested) = requested.filter(|text| !text.is_empty()) else {
        return Ok(report(Cpu::detect(), false));
    };
    let refuse = |reason: String| Err(KernelError::Cpu { requested: requested.to_owned(), reason });
    let Some(tier) = Tier::ALL.into_iter().find(|tier| tier.name() == requested) else {
        return refuse("expected portable, avx2, avx512 or amx".to_owned());
    };
    match missing(tier) {
        None => Ok(report(Cpu(tier), true)),
        Some(lack) => {
            let names: Vec<_> = Cpu::available().iter().map(|cpu| cpu.tier().name()).collect();
            refuse(format!("{lack}; available here: {}", names.join(", ")))
        }
    }
}

/// What keeps a tier from running here.
fn missing(tier: Tier) -> Option<String> {
    static FOUND: OnceLock<[Option<String>; 4]> = OnceLock::new();
    FOUND.get_or_init(|| Tier::ALL.map(probe))[tier as usize].clone()
}

/// What keeps the bf16 products of fast prefill from running on a tier of this machine.
pub(crate) fn missing_for_fast_prefill(cpu: Cpu) -> Option<String> {
    if let Some(lack) = missing(Tier::Amx) {
        return Some(lack);
    }
    if cpu.tier() != Tier::Amx {
        return Some(format!("it runs on the tier amx, and {} was asked for", cpu.tier().name()));
    }
    bf16_tiles()
}

#[cfg(not(target_arch = "x86_64"))]
fn bf16_tiles() -> Option<String> {
    Some("not an x86-64 CPU".to_owned())
}

#[cfg(target_arch = "x86_64")]
fn bf16_tiles() -> Option<String> {
    // Leaf 7 exists: AMX tiles are reported there.
    let tiles = std::arch::x86_64::__cpuid_count(7, 0).edx & (1 << 22) != 0;
    let rows = std::arch::is_x86_feature_detected!("avx512bf16");
    let absent: Vec<&str> = [("amx-bf16", tiles), ("avx512bf16", rows)]
        .into_iter()
        .filter_map(|(name, found)| (!found).then_some(name))
        .collect();
    (!absent.is_empty()).then(|| format!("the CPU lacks {}", absent.join(", ")))
}

#[cfg(not(target_arch = "x86_64"))]
fn probe(tier: Tier) -> Option<String> {
    (tier != Tier::Portable).then(|| format!("not an x86-64 CPU ({})", std::env::consts::ARCH))
}

#[cfg(target_arch = "x86_64")]
fn probe(tier: Tier) -> Option<String> {
    macro_rules! lacking {
        ($($feature:tt)*) => {
            [$(($feature, std::arch::is_x86_feature_detected!($feature))),*]
        };
    }
    let avx2 = lacking!("avx2" "fma" "f16c");
    let avx512 = lacking!("avx512f" "avx512bw" "avx512dq" "avx512vl" "avx512vnni");
    let absent: Vec<&str> = avx2
        .iter()
        .filter(|_| tier >= Tier::Avx2)
        .chain(avx512.iter().filter(|_| tier >= Tier::Avx512))
        .filter(|(_, found)| !found)
        .map(|(name, _)| *name)
        .collect();
    if !absent.is_empty() {
        return Some(format!("the CPU lacks {}", absent.join(", ")));
    }
    if tier == Tier::Amx { amx::probe() } else { None }
}

#[cfg(target_arch = "x86_64")]
mod amx {
    //! AMX needs more than the CPU's word: its 8 KiB of registers are off until the process asks
    //! the kernel for them.

    use std::arch::x86_64::__cpuid_count;

    pub(super) fn probe() -> Option<String> {
        // Leaf 7 exists: the AVX2 features, checked before, are reported there.
        let features = __cpuid_count(7, 0).edx;
        if features & (1 << 24) == 0 || features & (1 << 25) == 0 {
            return Some("the CPU lacks amx-tile, amx-int8".to_owned());
        }
        request_tile_data()
    }

    #[cfg(target_os = "linux")]
    fn request_tile_data() -> Option<String> {
        unsafe extern "C" {
            fn syscall(number: i64, ...) -> i64;
        }
        const ARCH_PRCTL: i64 = 158;
        const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
        const XFEATURE_XTILEDATA: i64 = 18;
        // SAFETY: the call takes two integers and changes nothing but this process' permission.
        let refused = unsafe { syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) } != 0;
        refused.then(|| "the operating system does not grant the AMX registers".to_owned())
    }

    #[cfg(not(target_os = "linux"))]
    fn request_tile_data() -> Option<String> {
        Some("AMX is used on Linux only".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_tier_is_chosen_unless_one_is_asked_for() {
        let best = choose(None).expect("detection cannot fail");
        assert!(!best.forced);
        assert_eq!(best.cpu, Cpu::detect());
        assert_eq!(choose(Some("")).as_ref(), Ok(&best));
        for cpu in Cpu::available() {
            let report = choose(Some(cpu.tier().name())).expect("available");
            assert_eq!((report.cpu, report.forced), (cpu, true));
        }
    }

    #[test]
    fn an_unknown_tier_and_one_the_cpu_lacks_are_clear_errors() {
        let error = choose(Some("sse9")).expect_err("no such tier");
        assert_eq!(error.code(), "ERR_TINYLLM_CPU");
        let text = "TINYLLM_CPU=\"sse9\": expected portable, avx2, avx512 or amx";
        assert_eq!(error.to_string(), text);
        let report = choose(None).expect("detection cannot fail");
        for (tier, lack) in report.tiers {
            let forced = choose(Some(tier.name()));
            match lack {
                None => assert!(forced.is_ok()),
                Some(lack) => {
                    let message = forced.expect_err("lacking").to_string();
                    assert!(message.contains(&lack) && message.contains("portable"), "{message}");
                }
            }
        }
    }
}
