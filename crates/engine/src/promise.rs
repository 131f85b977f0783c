//! A value that one thread will have and another waits for, without a runtime: the waiter may be
//! any executor (Node's binding, [`block_on`]).

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

#[derive(Debug)]
struct Slot<T> {
    value: Option<T>,
    resolver_gone: bool,
    waker: Option<Waker>,
}

/// The side that has the value.
#[derive(Debug)]
pub struct Resolver<T>(Arc<Mutex<Slot<T>>>);

/// The side that waits. Yields `None` when the resolver went away without a value.
#[derive(Debug)]
pub struct Promise<T>(Arc<Mutex<Slot<T>>>);

/// A connected pair.
pub fn promise<T>() -> (Resolver<T>, Promise<T>) {
    let slot = Arc::new(Mutex::new(Slot { value: None, resolver_gone: false, waker: None }));
    (Resolver(Arc::clone(&slot)), Promise(slot))
}

impl<T> Resolver<T> {
    /// Hands the value over.
    pub fn resolve(self, value: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).value = Some(value);
    }
}

impl<T> Drop for Resolver<T> {
    fn drop(&mut self) {
        let waker = {
            let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            slot.resolver_gone = true;
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Promise<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match slot.value.take() {
            Some(value) => Poll::Ready(Some(value)),
            None if slot.resolver_gone => Poll::Ready(None),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on this thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}
