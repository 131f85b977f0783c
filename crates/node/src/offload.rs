//! Short work off the JS thread: a task of libuv's pool.

use napi::bindgen_prelude::{AsyncTask, ToNapiValue, TypeName};
use napi::{Env, Task};

/// Work to be done, once.
pub struct Offload<T>(Option<Box<dyn FnOnce() -> T + Send>>);

/// A promise of what `work` gives.
pub fn offload<T>(work: impl FnOnce() -> T + Send + 'static) -> AsyncTask<Offload<T>>
where
    T: Send + 'static + ToNapiValue + TypeName,
{
    AsyncTask::new(Offload(Some(Box::new(work))))
}

impl<T: Send + 'static + ToNapiValue + TypeName> Task for Offload<T> {
    type Output = T;
    type JsValue = T;

    fn compute(&mut self) -> napi::Result<T> {
        let work = self.0.take().ok_or_else(|| napi::Error::from_reason("a task ran twice"))?;
        // libuv's threads know nothing of panics.
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
            .map_err(|_| napi::Error::from_reason("a native task panicked"))
    }

    fn resolve(&mut self, _env: Env, output: T) -> napi::Result<T> {
        Ok(output)
    }
}
