//! A model file, ready to generate: forward pass, tokenizer, chat template.

use std::path::{Path, PathBuf};
use std::time::Duration;

#[cfg(not(feature = "free-forward"))]
use tinyllm_kernels::KernelError;
use tinyllm_model::{Device, Gguf, ModelSpec, VocabMetadata};
#[cfg(not(feature = "free-forward"))]
use tinyllm_model::{Model, PackedModel};
use tinyllm_tokenizer::{ChatTemplate, Rendered, TemplateError, TokenKind, Tokenizer, VocabSpec};

use crate::core::{EngineCore, EngineOptions};
#[cfg(not(feature = "free-forward"))]
use crate::core::{ForwardPath, Prefill};
use crate::error::EngineError;
use crate::forward::Forward;
use crate::token_table::TokenTable;

/// What a loaded model is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineInfo {
    /// The file.
    pub path: PathBuf,
    /// `general.architecture`.
    pub architecture: String,
    /// How logits are computed: `packed (avx2)`, or `reference` and why.
    pub forward: String,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Positions for one sequence in this engine.
    pub context_length: usize,
    /// Positions the model was made for.
    pub trained_context_length: usize,
    /// Whether [`Engine::render_chat`] works.
    pub has_chat_template: bool,
    /// Beginning of a text.
    pub bos: Option<u32>,
    /// Tokens that end a generation.
    pub ends: Vec<u32>,
    /// Bytes of the model file and of the KV pages, an estimate of the memory held.
    pub memory_bytes: usize,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Engine {
    core: EngineCore,
    tokenizer: Tokenizer,
    /// A file whose template is broken still completes plain prompts; the error comes when the
    /// template is asked for.
    template: Result<Option<ChatTemplate>, TemplateError>,
    info: EngineInfo,
}

impl Engine {
    /// Reads a GGUF file and starts an engine over it. Takes seconds; not for a thread that serves.
    pub fn load(path: &Path, device: &str, options: &EngineOptions) -> Result<Self, EngineError> {
        let gguf = Gguf::open(path)?;
        let tokenizer = Tokenizer::new(&vocab_spec(VocabMetadata::from_gguf(&gguf)?))?;
        let device: Device = device.parse()?;
        let spec = ModelSpec::from_gguf(&gguf)?;
        let (forward, described) = forward(&gguf, device, &spec, options)?;
        let model_bytes = std::fs::metadata(path).map_or(0, |m| m.len() as usize);
        let core = EngineCore::start(forward, token_table(&tokenizer), options)?;
        let template = tokenizer.chat_template();
        let info = EngineInfo {
            path: path.to_owned(),
            architecture: spec.architecture.name().to_owned(),
            forward: described,
            vocab_size: tokenizer.vocab_size(),
            context_length: core.context_length(),
            trained_context_length: spec.context_length,
            has_chat_template: matches!(template, Ok(Some(_))),
            bos: tokenizer.bos(),
            ends: tokenizer.eog_ids().to_vec(),
            memory_bytes: model_bytes + core.kv_bytes(),
        };
        Ok(Self { core, tokenizer, template, info })
    }

    /// Where generations are submitted.
    pub fn core(&self) -> &EngineCore {
        &self.core
    }

    /// What was loaded.
    pub fn info(&self) -> &EngineInfo {
        &self.info
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The tokens of a raw prompt, with BOS before them where the model wants it.
    pub fn encode_prompt(&self, text: &str, special: bool) -> Result<Vec<u32>, EngineError> {
        let mut ids = self.tokenizer.encode(text, special)?;
        if self.tokenizer.add_bos()
            && let Some(bos) = self.tokenizer.bos()
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// Renders a conversation with the model's own template; gives the text in segments and its
    /// tokens. `messages` and `tools` are JSON texts.
    pub fn render_chat(
        &self,
        messages: &str,
        tools: Option<&str>,
        add_generation_prompt: bool,
    ) -> Result<(Rendered, Vec<u32>), EngineError> {
        let template = self.template.as_ref().map_err(Clone::clone)?.as_ref().ok_or_else(|| {
            EngineError::invalid("messages", "this model file has no chat template; pass a prompt")
        })?;
        let messages = crate::template_json::read(messages)?;
        let tools = tools.map(crate::template_json::read).transpose()?;
        let rendered = template.render(&messages, tools.as_ref(), add_generation_prompt, None)?;
        let ids = self.tokenizer.encode_segments(&rendered.segments)?;
        Ok((rendered, ids))
    }

    /// See [`EngineCore::close`].
    pub fn close(&self, deadline: Duration) -> bool {
        self.core.close(deadline)
    }
}

#[cfg(feature = "free-forward")]
fn forward(
    _: &Gguf,
    _: Device,
    spec: &ModelSpec,
    _: &EngineOptions,
) -> Result<(Box<dyn Forward>, String), EngineError> {
    Ok((Box::new(crate::free_forward::FreeForward::new(spec)), "free".to_owned()))
}

/// The forward pass that the options ask for, and its description.
#[cfg(not(feature = "free-forward"))]
fn forward(
    gguf: &Gguf,
    device: Device,
    spec: &ModelSpec,
    options: &EngineOptions,
) -> Result<(Box<dyn Forward>, String), EngineError> {
    let threads = options.threads.unwrap_or(0);
    let why = match options.path {
        ForwardPath::Reference => Some("asked for".to_owned()),
        ForwardPath::Packed => PackedModel::unsupported(gguf, spec),
    };
    let fast = options.prefill == Prefill::Fast;
    if let Some(why) = why {
        if fast {
            let reason = format!("the forward pass is the reference ({why})");
            return Err(KernelError::FastPrefill { reason }.into());
        }
        let model = Model::load_with_threads(gguf, device, threads)?;
        return Ok((Box::new(model), format!("reference: {why}")));
    }
    let cpu = tinyllm_kernels::choose(options.cpu.as_deref())?.cpu;
    let tier = cpu.tier().name();
    if fast {
        // Before the weights are packed: what is missing is known now.
        cpu.fast_prefill()?;
        let model = PackedModel::load(gguf, cpu, threads)?.with_fast_prefill()?;
        return Ok((Box::new(model), format!("packed ({tier}), prefill fast")));
    }
    let model = PackedModel::load(gguf, cpu, threads)?;
    Ok((Box::new(model), format!("packed ({tier})")))
}

fn vocab_spec(metadata: VocabMetadata) -> VocabSpec {
    VocabSpec {
        model: metadata.model,
        pre: metadata.pre.unwrap_or_default(),
        tokens: metadata.tokens,
        kinds: metadata.kinds,
        merges: metadata.merges,
        bos: metadata.bos,
        eos: metadata.eos,
        eot: metadata.eot,
        eom: metadata.eom,
        unk: metadata.unk,
        pad: metadata.pad,
        add_bos: metadata.add_bos,
        chat_template: metadata.chat_template,
    }
}

fn token_table(tokenizer: &Tokenizer) -> TokenTable {
    let ids = 0..tokenizer.vocab_size() as u32;
    let bytes =
        ids.clone()
            .map(|id| {
                if tokenizer.is_special(id) {
                    Vec::new()
                } else {
                    tokenizer.token_bytes(id).to_vec()
                }
            })
            .collect();
    let never = ids
        .filter(|&id| matches!(tokenizer.kind(id), Some(TokenKind::Unknown | TokenKind::Unused)))
        .collect();
    let ends = tokenizer.eog_ids().to_vec();
    TokenTable::new(bytes, |id| tokenizer.is_special(id), ends, never)
}
