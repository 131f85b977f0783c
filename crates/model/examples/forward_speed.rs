//! How fast the packed forward pass is on this machine, by itself:
//! `cargo run --release -p tinyllm-model --example forward_speed -- model.gguf [threads] [only]`,
//! `only` being `prefill`, `fast` (prefill with bf16 products), `decode16`, `decode512`,
//! `decode2048` or `batch8` to `batch32`: that alone, ten times as often, for a profiler.
//!
//! `TINYLLM_CPU` chooses the tier. Prints the best and the median of several runs; other load on
//! the machine makes them worse, never better. With one thread on Linux, time is that which the
//! thread spent on a CPU (counted in ticks of some milliseconds, too coarse for one decoded token), so
//! that other load hardly matters. The comparison with a peer is
//! `bench/forward.mjs`.

use std::time::Instant;

/// Seconds since some moment.
fn now(threads: usize) -> f64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let on_cpu = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    let wall = || START.get_or_init(Instant::now).elapsed().as_secs_f64();
    if threads == 1 { on_cpu().map_or_else(wall, |ns| ns / 1e9) } else { wall() }
}

use tinyllm_kernels::{KvPool, PageId, choose};
use tinyllm_model::{Feed, Gguf, Logits, PackedModel};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: forward_speed model.gguf [threads]")?;
    let threads = arguments.next().map_or(Ok(2), |text| text.parse())?;
    let only = arguments.next();
    let wanted = |what: &str| only.as_deref().is_none_or(|only| only == what);
    let times_more = if only.is_some() { 10 } else { 1 };
    let report = choose(std::env::var("TINYLLM_CPU").ok().as_deref())?;
    let gguf = Gguf::open(&path)?;
    let start = now(threads);
    let mut model = PackedModel::load(&gguf, report.cpu, threads)?;
    if only.as_deref() == Some("fast") {
        model = model.with_fast_prefill()?;
    }
    println!("tier {}, {threads} threads", report.cpu.tier().name());
    println!("load {:.0} ms", (now(threads) - start) * 1e3);
    let pages = 2304 / 32 + 32 * 5;
    let pool = KvPool::new(model.kv_shape(), pages)?;
    let table = pool.allocate_many(2304 / 32)?;
    let tokens: Vec<u32> = (0..2304).map(|i| (i * 7919 + 13) % 20_000).collect();

    let prefill = |position: usize, count: usize| -> Result<f64, Box<dyn std::error::Error>> {
        let start = now(threads);
        for at in (position..position + count).step_by(512) {
            let tokens = &tokens[at..(position + count).min(at + 512)];
            let feed =
                Feed { tokens, position: at, pages: &table, logits: Logits::None, prompt: true };
            model.step(&[feed], &pool)?;
        }
        Ok(now(threads) - start)
    };
    prefill(0, 2200)?;
    for count in [128, 512] {
        if !wanted("prefill") && !wanted("fast") {
            break;
        }
        let times =
            (0..7 * times_more).map(|_| prefill(0, count)).collect::<Result<Vec<_>, _>>()?;
        let (best, median) = summary(times);
        let rate = |seconds: f64| count as f64 / seconds;
        println!("prefill {count}: {:.0} t/s best, {:.0} median", rate(best), rate(median));
    }
    prefill(0, 2200)?;
    for depth in [16, 512, 2048] {
        if !wanted(&format!("decode{depth}")) {
            continue;
        }
        let mut times = Vec::new();
        for i in (0..60).cycle().take(60 * times_more) {
            let start = now(threads);
            let tokens = &tokens[depth + i..=depth + i];
            let feed = Feed {
                tokens,
                position: depth + i,
                pages: &table,
                logits: Logits::Last,
                prompt: false,
            };
            model.step(&[feed], &pool)?;
            times.push(now(threads) - start);
        }
        let (best, median) = summary(times);
        let (b, m) = (best * 1e3, median * 1e3);
        println!("decode @{depth}: {b:.2} ms best, {m:.2} median ({:.0} t/s)", 1.0 / best);
    }
    for rows in [8, 16, 32] {
        if !wanted(&format!("batch{rows}")) {
            continue;
        }
        let tables: Vec<Vec<PageId>> =
            (0..rows).map(|_| pool.allocate_many(5)).collect::<Result<_, _>>()?;
        for pages in &tables {
            let feed = Feed {
                tokens: &tokens[..128],
                position: 0,
                pages,
                logits: Logits::None,
                prompt: true,
            };
            model.step(&[feed], &pool)?;
        }
        let mut times = Vec::new();
        for i in (0..20).cycle().take(60 * times_more) {
            let feeds: Vec<Feed<'_>> = tables
                .iter()
                .map(|pages| Feed {
                    tokens: &tokens[128 + i..=128 + i],
                    position: 128 + i,
                    pages,
                    logits: Logits::Last,
                    prompt: false,
                })
                .collect();
            let start = now(threads);
            model.step(&feeds, &pool)?;
            times.push(now(threads) - start);
        }
        let (best, median) = summary(times);
        let rate = |seconds: f64| rows as f64 / seconds;
        println!("batch {rows}: {:.0} t/s best, {:.0} median", rate(best), rate(median));
        for page in tables.into_iter().flatten() {
            pool.release(page)?;
        }
    }
    Ok(())
}

/// The smallest and the middle one.
fn summary(mut seconds: Vec<f64>) -> (f64, f64) {
    seconds.sort_by(f64::total_cmp);
    (seconds[0], seconds[seconds.len() / 2])
}
