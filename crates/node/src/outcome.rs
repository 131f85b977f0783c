//! `{ ok }` or `{ failure }`.

use std::error::Error;

use napi_derive::napi;
use tinyllm_constrain::ConstrainError;
use tinyllm_engine::EngineError;
use tinyllm_model::ModelError;

/// An error on its way to JS.
#[napi(object, object_from_js = false)]
pub struct NativeFailure {
    pub code: String,
    pub message: String,
    pub details: Option<NativeErrorDetails>,
    /// What the errors below said, outermost first.
    pub causes: Vec<String>,
}

/// Where it happened.
#[napi(object, object_from_js = false)]
#[derive(Default)]
pub struct NativeErrorDetails {
    pub param: Option<String>,
    pub pointer: Option<String>,
    pub position: Option<u32>,
    pub keyword: Option<String>,
    pub limit_name: Option<String>,
    pub limit: Option<u32>,
    pub actual: Option<u32>,
}

impl From<&EngineError> for NativeErrorDetails {
    fn from(error: &EngineError) -> Self {
        match error {
            EngineError::InvalidRequest { param, .. } => {
                Self { param: Some((*param).to_owned()), ..Self::default() }
            }
            EngineError::ContextLength { prompt_tokens, max_tokens, limit } => Self {
                param: Some(if prompt_tokens < limit { "maxTokens" } else { "prompt" }.to_owned()),
                limit: Some(*limit as u32),
                actual: Some(
                    u32::try_from(prompt_tokens + max_tokens.unwrap_or(1)).unwrap_or(u32::MAX),
                ),
                ..Self::default()
            },
            EngineError::Overloaded { limit } => {
                Self { limit: Some(*limit as u32), ..Self::default() }
            }
            EngineError::Constrain(error) => error.into(),
            _ => Self::default(),
        }
    }
}

impl From<&ConstrainError> for NativeErrorDetails {
    fn from(error: &ConstrainError) -> Self {
        Self {
            pointer: error.pointer().map(str::to_owned),
            position: error.position().map(|p| p as u32),
            keyword: error.keyword().map(str::to_owned),
            limit_name: error.limit().map(str::to_owned),
            ..Self::default()
        }
    }
}

fn failure(error: &dyn Error, code: &str, details: NativeErrorDetails) -> NativeFailure {
    let mut causes = Vec::new();
    let mut below = error.source();
    while let Some(cause) = below {
        causes.push(cause.to_string());
        below = cause.source();
    }
    NativeFailure {
        code: code.to_owned(),
        message: error.to_string(),
        details: Some(details),
        causes,
    }
}

impl From<EngineError> for NativeFailure {
    fn from(error: EngineError) -> Self {
        failure(&error, error.code(), (&error).into())
    }
}

impl From<ConstrainError> for NativeFailure {
    fn from(error: ConstrainError) -> Self {
        failure(&error, error.code(), (&error).into())
    }
}

impl From<ModelError> for NativeFailure {
    fn from(error: ModelError) -> Self {
        failure(&error, error.code(), NativeErrorDetails::default())
    }
}

/// Declares outcome types: napi has no generic objects.
macro_rules! outcomes {
    ($($(#[$doc:meta])* $name:ident($value:ty);)*) => {$(
        $(#[$doc])*
        #[napi(object, object_from_js = false)]
        pub struct $name {
            pub ok: Option<$value>,
            pub failure: Option<NativeFailure>,
        }

        impl<E: Into<NativeFailure>> From<Result<$value, E>> for $name {
            fn from(result: Result<$value, E>) -> Self {
                match result {
                    Ok(value) => Self { ok: Some(value), failure: None },
                    Err(error) => Self { ok: None, failure: Some(error.into()) },
                }
            }
        }
    )*};
}
pub(crate) use outcomes;

outcomes! {
    TextOutcome(String);
}
