//! Futures of the engine as JavaScript promises, without a runtime between them.
//!
//! Whoever has what a future waits for (the engine's thread, mostly) polls it on the spot, which takes
//! next to nothing, and hands the result over to the JS thread, where it becomes JavaScript values. A
//! runtime's threads would be one more hop for every batch, at tens of microseconds each.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use napi::bindgen_prelude::{Object, ToNapiValue};
use napi::{Env, JsDeferred};

type Value<T> = Box<dyn FnOnce(Env) -> napi::Result<T> + Send>;

/// A future, how its output becomes a value on the JS thread, and the promise for it.
struct Pending<F, C, T: ToNapiValue> {
    future: Pin<Box<F>>,
    convert: C,
    deferred: JsDeferred<T, Value<T>>,
}

/// What is polled by those who wake it.
struct Promised<F, C, T: ToNapiValue> {
    /// Empty when it is done, or being polled.
    place: Mutex<Option<Pending<F, C, T>>>,
    /// Wake-ups that were not answered yet. Who makes it one polls; the others (among them the
    /// future itself, while it is polled) only count, and are answered by another poll.
    wakes: AtomicUsize,
}

impl<F, C, T> Wake for Promised<F, C, T>
where
    F: Future + Send + 'static,
    F::Output: Send,
    C: FnOnce(F::Output) -> T + Send + 'static,
    T: ToNapiValue + 'static,
{
    fn wake(self: Arc<Self>) {
        if self.wakes.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let waker = Waker::from(Arc::clone(&self));
        let mut answered = 1;
        let place = || self.place.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // Unlocked before it is polled.
            let taken = place().take();
            let Some(mut pending) = taken else { return };
            let mut context = Context::from_waker(&waker);
            let poll = AssertUnwindSafe(|| pending.future.as_mut().poll(&mut context));
            match catch_unwind(poll) {
                Ok(Poll::Pending) => *place() = Some(pending),
                Ok(Poll::Ready(output)) => {
                    let Pending { convert, deferred, .. } = pending;
                    return deferred.resolve(Box::new(move |_| Ok(convert(output))));
                }
                // A promise settles, whatever happens.
                Err(_) => {
                    let reason = "an internal error while waiting for the engine";
                    return pending.deferred.reject(napi::Error::from_reason(reason));
                }
            }
            let wakes = self.wakes.fetch_sub(answered, Ordering::AcqRel);
            if wakes == answered {
                return;
            }
            answered = wakes - answered;
        }
    }
}

/// A promise of what `convert` makes of the future's output, on the JS thread.
pub fn promised<F, C, T>(env: &Env, future: F, convert: C) -> napi::Result<Object<'_>>
where
    F: Future + Send + 'static,
    F::Output: Send,
    C: FnOnce(F::Output) -> T + Send + 'static,
    T: ToNapiValue + 'static,
{
    let (deferred, promise) = env.create_deferred()?;
    let pending = Pending { future: Box::pin(future), convert, deferred };
    let place = Mutex::new(Some(pending));
    Arc::new(Promised { place, wakes: AtomicUsize::new(0) }).wake();
    Ok(promise)
}
