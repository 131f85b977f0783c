//! Futures of the engine as JavaScript promises, without a runtime between them.
//!
//! Whoever has what a future waits for (the engine's thread, mostly) polls it on the spot, which takes
//! next to nothing, and hands the result over to the JS thread, where it becomes JavaScript values. A
//! runtime's threads would be one more hop for every batch, at tens of microseconds each.

use std::future::Future;
use std::pin::Pin;
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

/// What is polled by those who wake it; empty when it is done.
struct Promised<F, C, T: ToNapiValue>(Mutex<Option<Pending<F, C, T>>>);

impl<F, C, T> Wake for Promised<F, C, T>
where
    F: Future + Send + 'static,
    F::Output: Send,
    C: FnOnce(F::Output) -> T + Send + 'static,
    T: ToNapiValue + 'static,
{
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        // Held while polling: who wakes meanwhile waits, and polls again.
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut pending) = place.take() else { return };
        match pending.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => *place = Some(pending),
            Poll::Ready(output) => {
                let Pending { convert, deferred, .. } = pending;
                deferred.resolve(Box::new(move |_| Ok(convert(output))));
            }
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
    Arc::new(Promised(Mutex::new(Some(pending)))).wake();
    Ok(promise)
}
