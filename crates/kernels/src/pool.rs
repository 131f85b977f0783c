//! The kernels' threads: a fork-join pool for regions of a few microseconds.
//!
//! [`ThreadPool::run`] splits a region into numbered chunks. The caller works too. Every thread has
//! a share, a run of neighbouring chunks ([`ThreadPool::share`]), so that it reads weights front to
//! back and can be told what it will read next; who is done takes from the others' shares. A thread
//! that loses its core to something else (Node's event loop shares the machine) therefore delays
//! the region by one chunk, not by its whole share, and a worker that has not woken up yet is not
//! waited for. Which thread runs a chunk is not determined, so a chunk's result must not depend on
//! it.
//!
//! While a worker waits for the next region it asks for the memory that it will read there, if the
//! caller said where that is: between regions the caller has work of its own, and the bus none.
//!
//! Workers spin for a short while after a region (the next one usually follows at once; a fork-join
//! then costs well under a microsecond) and park afterwards, so an idle pool uses no CPU.
//!
//! Invariant: a worker holds the job's reference only between entering the gate, which succeeds
//! only while it is open, and leaving it; the caller returns only after the gate is closed and
//! everybody has left. Hence jobs may borrow from the caller's stack.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::KernelError;

/// How long a worker looks for the next region before it parks.
const SPIN: Duration = Duration::from_micros(50);

/// Bytes that a waiting worker asks for at most: a part of its second-level cache.
const AHEAD: usize = 256 << 10;

/// The gate: how many workers are inside, whether more may enter, and the region's number.
const INSIDE: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const REGION: u64 = 1 << 17;

type Job<'a> = dyn Fn(usize) + Sync + 'a;

/// Keeps what different threads write on different cache lines.
#[repr(align(128))]
struct Line<T>(T);

struct Shared {
    gate: Line<AtomicU64>,
    /// The next chunk to claim of each thread's share (the caller's first); at or beyond its end
    /// there is none.
    next: Box<[Line<AtomicUsize>]>,
    chunks: AtomicUsize,
    /// Threads that share regions, the caller included: set once, before the first region.
    threads: AtomicUsize,
    /// The region's job. Written while the gate is closed and empty, read by those inside.
    job: UnsafeCell<Option<*const Job<'static>>>,
    /// Which workers are parked (or about to be).
    parked: Box<[AtomicBool]>,
    /// What each worker will read after the region, for prefetching alone; may be null.
    ahead: Box<[AtomicPtr<u8>]>,
    stop: AtomicBool,
    panic: Mutex<Option<String>>,
}

// SAFETY: all fields but `job` are thread-safe by themselves. `job` is written only by the caller
// while the gate is closed and nobody is inside, and read only by threads inside (the caller's own
// reads are its program order); opening, entering, leaving and waiting for the gate order the
// accesses. What it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is never used outside of a region.
unsafe impl Send for Shared {}

/// A pool of threads. Dropping it ends them.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the thread whose region is running.
    region: Mutex<u64>,
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").field("threads", &self.threads()).finish()
    }
}

impl ThreadPool {
    /// A pool in which `threads` threads work, the caller of [`run`](Self::run) being one of them.
    /// When the system refuses a thread the pool has fewer.
    pub fn new(threads: usize) -> ThreadPool {
        let count = threads.clamp(1, INSIDE as usize) - 1;
        let shared = Arc::new(Shared {
            gate: Line(AtomicU64::new(0)),
            next: (0..=count).map(|_| Line(AtomicUsize::new(0))).collect(),
            chunks: AtomicUsize::new(0),
            threads: AtomicUsize::new(1),
            job: UnsafeCell::new(None),
            parked: (0..count).map(|_| AtomicBool::new(false)).collect(),
            ahead: (0..count).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let workers: Vec<_> = (0..count)
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                let name = format!("tinyllm-kernel-{index}");
                thread::Builder::new().name(name).spawn(move || shared.serve(index)).ok()
            })
            .collect();
        shared.threads.store(workers.len() + 1, Ordering::Relaxed);
        ThreadPool { shared, workers, region: Mutex::new(0) }
    }

    /// Threads that work in a region, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The chunks that thread `thread` (below [`threads`](Self::threads)) takes first, in ascending
    /// order, in a region of `chunks`.
    pub fn share(&self, chunks: usize, thread: usize) -> Range<usize> {
        share(chunks, thread, self.threads())
    }

    /// Runs `job(0)`, …, `job(chunks - 1)`, each once, on the pool's threads, and returns when all
    /// are done. A region inside a region, or one from a second thread at the same time, runs on
    /// its caller alone.
    ///
    /// # Errors
    /// [`KernelError::Panicked`] when a chunk panicked; chunks that were not started then may never
    /// run. The pool stays usable.
    pub fn run(&self, chunks: usize, job: &Job<'_>) -> Result<(), KernelError> {
        self.run_before(chunks, &|_| std::ptr::null(), job)
    }

    /// [`run`](Self::run), told where the memory begins that a thread will read afterwards, which is
    /// never read for its contents (null if that is not known).
    ///
    /// # Errors
    /// As for `run`.
    pub(crate) fn run_before(
        &self,
        chunks: usize,
        next: &dyn Fn(usize) -> *const u8,
        job: &Job<'_>,
    ) -> Result<(), KernelError> {
        let guard =
            if chunks > 1 && !self.workers.is_empty() { self.region.try_lock().ok() } else { None };
        let Some(mut region) = guard else {
            return catch_unwind(AssertUnwindSafe(|| (0..chunks).for_each(job)))
                .map_err(|panic| KernelError::Panicked { message: message(&*panic) });
        };
        *region += 1;
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is used by threads inside the gate, and
        // this function returns (and unwinds: it does not) only after the gate is closed and empty.
        let erased = unsafe { std::mem::transmute::<&Job<'_>, &Job<'static>>(job) };
        // SAFETY: the gate is closed and empty here, and `region` is locked: nobody else reads or
        // writes the cell.
        unsafe { *shared.job.get() = Some(erased) };
        shared.chunks.store(chunks, Ordering::Relaxed);
        for (thread, next) in shared.next.iter().enumerate() {
            next.0.store(self.share(chunks, thread).start, Ordering::Relaxed);
        }
        for (worker, ahead) in shared.ahead.iter().enumerate() {
            ahead.store(next(worker + 1).cast_mut(), Ordering::Relaxed);
        }
        // SeqCst, here and around `parked`: either the worker sees the open gate before it parks,
        // or this thread sees that it is parked.
        shared.gate.0.store((*region * REGION) | OPEN, Ordering::SeqCst);
        for (parked, worker) in shared.parked.iter().zip(&self.workers).take(chunks - 1) {
            if parked.load(Ordering::SeqCst) && parked.swap(false, Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        shared.claim(job, 0);
        shared.gate.0.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0_u32;
        while shared.gate.0.load(Ordering::Acquire) & INSIDE != 0 {
            spins += 1;
            if spins < 2000 {
                std::hint::spin_loop();
            } else {
                // A worker that lost its core may be waiting for this one.
                thread::yield_now();
            }
        }
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        panic.map_or(Ok(()), |message| Err(KernelError::Panicked { message }))
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for (parked, worker) in self.shared.parked.iter().zip(&self.workers) {
            parked.store(false, Ordering::SeqCst);
            worker.thread().unpark();
        }
        for worker in self.workers.drain(..) {
            // A worker catches its jobs' panics; there is nothing to learn from its result.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Claims and runs chunks until none is left: of thread `me`'s share first, then of the
    /// following ones'. A panic is noted and ends the region early.
    fn claim(&self, job: &Job<'_>, me: usize) {
        let chunks = self.chunks.load(Ordering::Relaxed);
        let threads = self.threads.load(Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(|| {
            for thread in (me..threads).chain(0..me) {
                let end = share(chunks, thread, threads).end;
                let next = &self.next[thread].0;
                // Not counted up for ever by threads that only look.
                while next.load(Ordering::Relaxed) < end {
                    let chunk = next.fetch_add(1, Ordering::Relaxed);
                    if chunk >= end {
                        break;
                    }
                    job(chunk);
                }
            }
        }));
        if let Err(panic) = result {
            for next in &self.next {
                next.0.store(chunks, Ordering::Relaxed);
            }
            let mut slot = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
            slot.get_or_insert_with(|| message(&*panic));
        }
    }

    /// A worker's life.
    fn serve(&self, index: usize) {
        let mut last = 0;
        let mut idle_since = Instant::now();
        let mut spins = 0_u32;
        let mut ahead = Ahead::default();
        while !self.stop.load(Ordering::SeqCst) {
            let gate = self.gate.0.load(Ordering::SeqCst);
            let region = gate / REGION;
            if gate & OPEN != 0 && region != last {
                let enter = self.gate.0.compare_exchange(
                    gate,
                    gate + 1,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
                if enter.is_ok() {
                    last = region;
                    // SAFETY: this thread is inside the gate, so the job was written before the
                    // gate opened and stays valid until this thread leaves.
                    let job = unsafe { (*self.job.get()).map(|job| &*job) };
                    if let Some(job) = job {
                        self.claim(job, index + 1);
                    }
                    let next = self.ahead[index].load(Ordering::Relaxed);
                    self.gate.0.fetch_sub(1, Ordering::Release);
                    ahead = Ahead::new(next);
                    idle_since = Instant::now();
                }
                continue;
            }
            if ahead.lines > 0 {
                ahead.step();
                continue;
            }
            spins = spins.wrapping_add(1);
            if !spins.is_multiple_of(64) || idle_since.elapsed() < SPIN {
                std::hint::spin_loop();
                continue;
            }
            let parked = &self.parked[index];
            parked.store(true, Ordering::SeqCst);
            let gate = self.gate.0.load(Ordering::SeqCst);
            if gate & OPEN != 0 && gate / REGION != last {
                parked.store(false, Ordering::SeqCst);
                continue;
            }
            while parked.load(Ordering::SeqCst) && !self.stop.load(Ordering::SeqCst) {
                thread::park();
            }
            idle_since = Instant::now();
        }
    }
}

/// The chunks of thread `thread`'s share, of `chunks` in all.
fn share(chunks: usize, thread: usize, threads: usize) -> Range<usize> {
    chunks * thread / threads..chunks * (thread + 1) / threads
}

/// Memory that a waiting worker asks for.
#[derive(Default)]
struct Ahead {
    at: usize,
    lines: usize,
}

impl Ahead {
    fn new(at: *const u8) -> Ahead {
        let lines = if at.is_null() || !cfg!(target_arch = "x86_64") { 0 } else { AHEAD / 64 };
        Ahead { at: at.addr(), lines }
    }

    /// A few lines: what comes in while the gate is looked at once.
    fn step(&mut self) {
        #[cfg(target_arch = "x86_64")]
        for _ in 0..2 {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            let at = std::ptr::without_provenance::<i8>(self.at);
            // SAFETY: every x86-64 can, and any address will do.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at) };
            self.at = self.at.wrapping_add(64);
        }
        self.lines = self.lines.saturating_sub(2);
    }
}

/// The text of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "no message".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_runs_exactly_once_in_every_region() {
        for threads in [1, 2, 3, 9] {
            let pool = ThreadPool::new(threads);
            assert_eq!(pool.threads(), threads);
            for region in 0..500 {
                let chunks = region % 37;
                let counts: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(chunks, &|i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                })
                .expect("no chunk panics");
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn what_chunks_write_is_seen_after_the_region() {
        let pool = ThreadPool::new(4);
        let cells: Vec<Mutex<u64>> = (0..64).map(|_| Mutex::new(0)).collect();
        for _ in 0..2000 {
            pool.run(64, &|i| *cells[i].lock().expect("no panic") += i as u64).expect("no panic");
        }
        for (i, cell) in cells.iter().enumerate() {
            assert_eq!(*cell.lock().expect("no panic"), 2000 * i as u64);
        }
    }

    #[test]
    fn a_parked_pool_wakes_up() {
        let pool = ThreadPool::new(3);
        let all_parked = || pool.shared.parked.iter().all(|p| p.load(Ordering::SeqCst));
        for _ in 0..20 {
            while !all_parked() {
                thread::yield_now();
            }
            let sum = AtomicUsize::new(0);
            let add = |i| {
                sum.fetch_add(i, Ordering::Relaxed);
            };
            pool.run(100, &add).expect("no panic");
            assert_eq!(sum.load(Ordering::Relaxed), 4950);
        }
    }

    #[test]
    fn regions_from_several_threads_and_inside_regions_are_complete() {
        let pool = ThreadPool::new(2);
        let total = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let inner = |_| {
                            total.fetch_add(1, Ordering::Relaxed);
                        };
                        let outer = |_| pool.run(3, &inner).expect("no panic");
                        pool.run(5, &outer).expect("no panic");
                    }
                });
            }
        });
        assert_eq!(total.load(Ordering::Relaxed), 4 * 200 * 15);
    }

    #[test]
    fn a_panic_becomes_an_error_and_the_pool_lives_on() {
        for threads in [1, 3] {
            let pool = ThreadPool::new(threads);
            for round in 0..50 {
                let result = pool.run(40, &|i| assert!(i != round % 40, "chunk {i} fails"));
                let message = format!("chunk {} fails", round % 40);
                assert_eq!(result, Err(KernelError::Panicked { message }));
                assert_eq!(pool.run(40, &|_| ()), Ok(()));
            }
        }
    }
}
