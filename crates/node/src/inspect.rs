//! The header of a model file.

use napi::bindgen_prelude::AsyncTask;
use napi_derive::napi;
use tinyllm_constrain::Json;
use tinyllm_engine::EngineError;
use tinyllm_kernels::choose;
use tinyllm_model::{Gguf, MetadataValue, ModelError};

use crate::offload::{Offload, offload};
use crate::outcome::TextOutcome;

/// Metadata and tensors of a GGUF file, as JSON text. Arrays are described, not copied.
#[napi(ts_return_type = "Promise<TextOutcome>")]
pub fn inspect_gguf(path: String) -> AsyncTask<Offload<TextOutcome>> {
    offload(move || header(&path).map(|json| json.dumps()).into())
}

fn header(path: &str) -> Result<Json, ModelError> {
    let gguf = Gguf::open(path)?;
    let int = |n: usize| Json::Int(n.to_string());
    let metadata = gguf.metadata().map(|(key, value)| (key.to_owned(), describe(value)));
    let tensors = gguf.tensors().iter().map(|tensor| {
        object([
            ("name", Json::Str(tensor.name().to_owned())),
            ("type", Json::Str(tensor.tensor_type().name().to_owned())),
            ("shape", Json::Arr(tensor.dims().iter().map(|n| int(*n)).collect())),
            ("bytes", int(tensor.data_bytes())),
        ])
    });
    Ok(object([
        ("version", Json::Int(gguf.version().to_string())),
        ("metadata", Json::Obj(metadata.collect())),
        ("tensors", Json::Arr(tensors.collect())),
    ]))
}

fn object<const N: usize>(members: [(&str, Json); N]) -> Json {
    Json::Obj(members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

fn describe(value: MetadataValue<'_>) -> Json {
    match value {
        MetadataValue::Unsigned(n) => Json::Int(n.to_string()),
        MetadataValue::Signed(n) => Json::Int(n.to_string()),
        // JSON has no other numbers.
        MetadataValue::Float(x) if x.is_finite() => Json::Float(x),
        MetadataValue::Float(x) => Json::Str(x.to_string()),
        MetadataValue::Bool(b) => Json::Bool(b),
        MetadataValue::String(s) => Json::Str(s.into_owned()),
        MetadataValue::Array { element, len } => {
            Json::Str(format!("{len} values of type {element:?}"))
        }
    }
}

/// The CPU tier that is used here and why, as JSON text: `{tier, forced, fastPrefill,
/// architecture, tiers}`, where `tiers` has what each lacks here, or null, and `fastPrefill` what fast
/// prefill lacks with that tier, or null. `requested` is a tier's name.
#[napi(catch_unwind)]
pub fn cpu_report(requested: Option<String>) -> TextOutcome {
    let report = choose(requested.as_deref()).map_err(EngineError::from);
    report
        .map(|report| {
            let tiers = report
                .tiers
                .into_iter()
                .map(|(tier, lack)| (tier.name().to_owned(), lack.map_or(Json::Null, Json::Str)));
            object([
                ("tier", Json::Str(report.cpu.tier().name().to_owned())),
                ("forced", Json::Bool(report.forced)),
                ("fastPrefill", report.fast_prefill.map_or(Json::Null, Json::Str)),
                ("architecture", Json::Str(report.architecture.to_owned())),
                ("tiers", Json::Obj(tiers.collect())),
            ])
            .dumps()
        })
        .into()
}
