//! The engine and its generations as classes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use napi::Env;
use napi::bindgen_prelude::{AsyncTask, BigInt, Object, Uint32Array};
use napi_derive::napi;
use tinyllm_engine::{
    Engine, EngineError, EngineOptions, ForwardPath, Generation, Prefill, Stats, promise,
};

use crate::offload::{Offload, offload};
use crate::outcome::{NativeFailure, outcomes};
use crate::promised::promised;
use crate::request::{NativeBatch, NativeRequest};

/// How an engine uses its machine; see `LoadOptions` in src/engine.ts.
#[napi(object, object_to_js = false)]
pub struct NativeLoadOptions {
    pub context_length: Option<u32>,
    pub device: Option<String>,
    /// `packed` or `reference`.
    pub forward: Option<String>,
    /// `exact` or `fast`.
    pub prefill: Option<String>,
    /// A CPU tier by name.
    pub cpu: Option<String>,
    pub threads: Option<u32>,
    pub parallel: Option<u32>,
    pub max_queue: Option<u32>,
    pub kv_bytes: Option<f64>,
    pub prefill_chunk: Option<u32>,
    pub grammar_cache_bytes: Option<f64>,
}

/// What was loaded.
#[napi(object, object_from_js = false)]
pub struct NativeEngineInfo {
    pub path: String,
    pub architecture: String,
    /// How logits are computed, and where that was not a choice, why.
    pub forward: String,
    pub vocab_size: u32,
    pub context_length: u32,
    pub trained_context_length: u32,
    pub has_chat_template: bool,
    pub bos_token_id: Option<u32>,
    pub end_token_ids: Vec<u32>,
    pub memory_bytes: f64,
}

/// A rendered conversation.
#[napi(object, object_from_js = false)]
pub struct NativeRendered {
    pub text: String,
    pub segments: Vec<NativeSegment>,
    pub ids: Uint32Array,
}

#[napi(object, object_from_js = false)]
pub struct NativeSegment {
    pub text: String,
    pub special: bool,
}

/// The engine's counters.
#[napi(object, object_from_js = false)]
pub struct NativeStats {
    pub requests: f64,
    pub finished: f64,
    pub cancelled: f64,
    pub failed: f64,
    pub steps: f64,
    pub forward_tokens: f64,
    pub prompt_tokens: f64,
    pub cached_tokens: f64,
    pub completion_tokens: f64,
    pub forced_tokens: f64,
    pub late_masks: f64,
    pub preemptions: f64,
    pub evictions: f64,
    pub running: f64,
    pub waiting: f64,
    pub pages_used: f64,
    pub pages_cached: f64,
    pub pages_total: f64,
    pub grammars: f64,
    pub grammar_bytes: f64,
}

/// What a grammar became.
#[napi(object, object_from_js = false)]
pub struct NativeCompiled {
    /// Bytes its tables take now; masks computed later add to them.
    pub memory_bytes: f64,
}

outcomes! {
    EngineOutcome(NativeEngine);
    GenerationOutcome(NativeGeneration);
    GenerationsOutcome(Vec<NativeGeneration>);
    /// `ok` is absent after the last batch.
    BatchOutcome(NativeBatch);
    IdsOutcome(Uint32Array);
    RenderedOutcome(NativeRendered);
    CompiledOutcome(NativeCompiled);
}

/// Loads a model and starts its engine.
#[napi(ts_return_type = "Promise<EngineOutcome>")]
pub fn load_engine(
    env: &Env,
    path: String,
    options: NativeLoadOptions,
) -> napi::Result<Object<'_>> {
    let (resolver, loaded) = promise();
    // Seconds of work: not libuv's.
    std::thread::spawn(move || resolver.resolve(load(&path, &options)));
    let panicked = || Err(EngineError::Internal("loading panicked".to_owned()));
    promised(env, loaded, move |loaded| EngineOutcome::from(loaded.unwrap_or_else(panicked)))
}

fn load(path: &str, options: &NativeLoadOptions) -> Result<NativeEngine, EngineError> {
    let mut settings = EngineOptions {
        context_length: options.context_length.map(|n| n as usize),
        prefill_chunk: options.prefill_chunk.map(|n| n as usize),
        threads: options.threads.map(|n| n as usize),
        path: match options.forward.as_deref() {
            Some("reference") => ForwardPath::Reference,
            _ => ForwardPath::Packed,
        },
        prefill: match options.prefill.as_deref() {
            Some("fast") => Prefill::Fast,
            _ => Prefill::Exact,
        },
        cpu: options.cpu.clone(),
        ..EngineOptions::default()
    };
    let set = |field: &mut usize, value: Option<f64>| {
        if let Some(value) = value {
            *field = value as usize;
        }
    };
    set(&mut settings.parallel, options.parallel.map(f64::from));
    set(&mut settings.max_queue, options.max_queue.map(f64::from));
    set(&mut settings.kv_bytes, options.kv_bytes);
    set(&mut settings.grammar_cache_bytes, options.grammar_cache_bytes);
    let device = options.device.as_deref().unwrap_or("cpu");
    Ok(NativeEngine(Arc::new(Engine::load(Path::new(path), device, &settings)?)))
}

/// A loaded model.
#[napi]
pub struct NativeEngine(Arc<Engine>);

#[napi]
impl NativeEngine {
    #[napi(getter, catch_unwind)]
    pub fn info(&self) -> NativeEngineInfo {
        let info = self.0.info();
        NativeEngineInfo {
            path: info.path.display().to_string(),
            architecture: info.architecture.clone(),
            forward: info.forward.clone(),
            vocab_size: info.vocab_size as u32,
            context_length: info.context_length as u32,
            trained_context_length: info.trained_context_length as u32,
            has_chat_template: info.has_chat_template,
            bos_token_id: info.bos,
            end_token_ids: info.ends.clone(),
            memory_bytes: info.memory_bytes as f64,
        }
    }

    /// Takes a request in; everything that happens to it comes from the generation.
    #[napi(catch_unwind)]
    pub fn submit(&self, request: NativeRequest) -> GenerationOutcome {
        let engine = &self.0;
        let submitted = request.into_request(engine).and_then(|r| engine.core().submit(r));
        submitted.map(|generation| NativeGeneration::new(generation, engine)).into()
    }

    /// Takes a request in `count` times, as one: the prompt is computed once. The seeds take the place
    /// of the request's, one each; without them every generation draws its own.
    #[napi(catch_unwind)]
    pub fn submit_choices(
        &self,
        request: NativeRequest,
        count: u32,
        seeds: Option<Vec<BigInt>>,
    ) -> GenerationsOutcome {
        let engine = &self.0;
        let seeds = seeds.map_or_else(
            || vec![None; count as usize],
            |seeds| seeds.iter().map(|seed| Some(seed.get_u64().1)).collect(),
        );
        let submitted =
            request.into_request(engine).and_then(|r| engine.core().submit_choices(r, &seeds));
        submitted
            .map(|generations| {
                generations.into_iter().map(|one| NativeGeneration::new(one, engine)).collect()
            })
            .into()
    }

    #[napi(catch_unwind)]
    pub fn tokenize(&self, text: String, special: bool) -> IdsOutcome {
        let ids = self.0.tokenizer().encode(&text, special).map_err(EngineError::from);
        ids.map(Uint32Array::new).into()
    }

    /// The tokens of a long prompt, off the JS thread.
    #[napi(ts_return_type = "Promise<IdsOutcome>")]
    pub fn encode_prompt(&self, text: String, special: bool) -> AsyncTask<Offload<IdsOutcome>> {
        let engine = Arc::clone(&self.0);
        offload(move || engine.encode_prompt(&text, special).map(Uint32Array::new).into())
    }

    #[napi(catch_unwind)]
    pub fn detokenize(&self, ids: Uint32Array) -> String {
        self.0.tokenizer().decode(&ids)
    }

    /// `messages` and `tools` are JSON texts.
    #[napi(ts_return_type = "Promise<RenderedOutcome>")]
    pub fn render_chat(
        &self,
        messages: String,
        tools: Option<String>,
        add_generation_prompt: bool,
    ) -> AsyncTask<Offload<RenderedOutcome>> {
        let engine = Arc::clone(&self.0);
        offload(move || {
            let rendered = engine.render_chat(&messages, tools.as_deref(), add_generation_prompt);
            rendered
                .map(|(rendered, ids)| NativeRendered {
                    text: rendered.text,
                    segments: rendered
                        .segments
                        .into_iter()
                        .map(|s| NativeSegment { text: s.text, special: s.special })
                        .collect(),
                    ids: Uint32Array::new(ids),
                })
                .into()
        })
    }

    /// Compiles a grammar ahead of its use, or tells why it cannot be.
    #[napi(ts_return_type = "Promise<CompiledOutcome>")]
    pub fn compile_grammar<'env>(
        &self,
        env: &'env Env,
        description: String,
    ) -> napi::Result<Object<'env>> {
        promised(env, self.0.core().compile(&description), |compiled| {
            let native = compiled.map(|g| NativeCompiled { memory_bytes: g.memory_bytes() as f64 });
            CompiledOutcome::from(native)
        })
    }

    #[napi(catch_unwind)]
    pub fn stats(&self) -> NativeStats {
        let Stats {
            requests,
            finished,
            cancelled,
            failed,
            steps,
            forward_tokens,
            prompt_tokens,
            cached_tokens,
            completion_tokens,
            forced_tokens,
            late_masks,
            preemptions,
            evictions,
            running,
            waiting,
            pages_used,
            pages_cached,
            pages_total,
        } = self.0.core().stats();
        let (grammars, grammar_bytes) = self.0.core().grammars();
        NativeStats {
            requests: requests as f64,
            finished: finished as f64,
            cancelled: cancelled as f64,
            failed: failed as f64,
            steps: steps as f64,
            forward_tokens: forward_tokens as f64,
            prompt_tokens: prompt_tokens as f64,
            cached_tokens: cached_tokens as f64,
            completion_tokens: completion_tokens as f64,
            forced_tokens: forced_tokens as f64,
            late_masks: late_masks as f64,
            preemptions: preemptions as f64,
            evictions: evictions as f64,
            running: running as f64,
            waiting: waiting as f64,
            pages_used: pages_used as f64,
            pages_cached: pages_cached as f64,
            pages_total: pages_total as f64,
            grammars: grammars as f64,
            grammar_bytes: grammar_bytes as f64,
        }
    }

    /// Stops intake, ends all generations and waits for the step under way, at most this long.
    /// Whether the engine's thread has ended.
    #[napi(ts_return_type = "Promise<boolean>")]
    pub fn close<'env>(&self, env: &'env Env, deadline_ms: u32) -> napi::Result<Object<'env>> {
        let engine = Arc::clone(&self.0);
        let (resolver, closed) = promise();
        std::thread::spawn(move || {
            resolver.resolve(engine.close(Duration::from_millis(u64::from(deadline_ms))));
        });
        promised(env, closed, |closed| closed.unwrap_or(false))
    }
}

/// A running generation. When it is garbage-collected the generation is cancelled.
#[napi]
pub struct NativeGeneration {
    generation: Arc<Generation>,
    engine: Arc<Engine>,
}

impl NativeGeneration {
    fn new(generation: Generation, engine: &Arc<Engine>) -> Self {
        Self { generation: Arc::new(generation), engine: Arc::clone(engine) }
    }
}

#[napi]
impl NativeGeneration {
    /// Everything that became ready since the last call; waits when nothing did.
    #[napi(ts_return_type = "Promise<BatchOutcome>")]
    pub fn next_batch<'env>(&self, env: &'env Env) -> napi::Result<Object<'env>> {
        let (generation, engine) = (Arc::clone(&self.generation), Arc::clone(&self.engine));
        let next = async move { generation.next_batch().await };
        promised(env, next, move |batch| match batch {
            Ok(batch) => {
                let ok = batch.map(|batch| NativeBatch::new(batch, &engine));
                BatchOutcome { ok, failure: None }
            }
            Err(error) => BatchOutcome { ok: None, failure: Some(NativeFailure::from(error)) },
        })
    }

    /// Stops it within one step; a waiting `nextBatch` fails at once.
    #[napi(catch_unwind)]
    pub fn cancel(&self) {
        self.generation.cancel();
    }
}
