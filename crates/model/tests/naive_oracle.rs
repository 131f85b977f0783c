//! The forward pass against the textbook: f64, one position at a time, no tiles, pages or threads.
//! The golden files cover two real models; this covers every switch of the description.

use tinyllm_model::{Device, Gguf, Logits, Model, ModelSpec, RopeStyle};
use tinyllm_testkit::TinyModel;

/// Mean squared error over mean square: f32 rounding leaves some 1e-13.
const NMSE_MAX: f64 = 1e-11;

struct Oracle<'a> {
    gguf: &'a Gguf,
    spec: ModelSpec,
    /// Per layer and position: keys, values.
    past: Vec<Vec<(Vec<f64>, Vec<f64>)>>,
}

impl Oracle<'_> {
    fn tensor(&self, name: &str) -> Vec<f64> {
        let tensor = self.gguf.tensor(name).unwrap();
        let data = self.gguf.tensor_data(tensor).chunks_exact(4);
        data.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()).into()).collect()
    }

    /// `name` times `x`, plus its bias if there is one.
    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.tensor(&format!("{name}.weight"));
        let rows = weight.chunks_exact(x.len());
        let mut y: Vec<f64> = rows.map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect();
        if self.gguf.tensor(&format!("{name}.bias")).is_some() {
            let bias = self.tensor(&format!("{name}.bias"));
            y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
        }
        y
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let scale = (mean + f64::from(self.spec.rms_eps)).sqrt();
        x.iter().zip(self.tensor(name)).map(|(x, weight)| x / scale * weight).collect()
    }

    fn rotate(&self, x: &mut [f64], position: usize) {
        let dim = self.spec.head_dim;
        let factors =
            self.gguf.tensor("rope_freqs.weight").map(|_| self.tensor("rope_freqs.weight"));
        for head in x.chunks_exact_mut(dim) {
            for pair in 0..dim / 2 {
                let frequency = self.spec.rope_base.powf(-2.0 * pair as f64 / dim as f64)
                    / factors.as_ref().map_or(1.0, |factors| factors[pair]);
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                let (a, b) = match self.spec.rope_style {
                    RopeStyle::Interleaved => (2 * pair, 2 * pair + 1),
                    RopeStyle::Halves => (pair, pair + dim / 2),
                };
                (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
            }
        }
    }

    fn attend(&self, layer: usize, q: &[f64]) -> Vec<f64> {
        let dim = self.spec.head_dim;
        let group = self.spec.n_heads / self.spec.n_kv_heads;
        let mut out = Vec::new();
        for (head, q) in q.chunks_exact(dim).enumerate() {
            let range = head / group * dim..(head / group + 1) * dim;
            let scores = self.past[layer].iter().map(|(k, _)| {
                let dot: f64 = k[range.clone()].iter().zip(q).map(|(k, q)| k * q).sum();
                (dot / (dim as f64).sqrt()).exp()
            });
            let scores: Vec<f64> = scores.collect();
            let sum: f64 = scores.iter().sum();
            out.extend(range.map(|d| {
                let past = self.past[layer].iter().zip(&scores);
                past.map(|((_, v), score)| v[d] * score).sum::<f64>() / sum
            }));
        }
        out
    }

    fn step(&mut self, token: u32) -> Vec<f64> {
        let position = self.past[0].len();
        let at = token as usize * self.spec.hidden;
        let mut x = self.tensor("token_embd.weight")[at..at + self.spec.hidden].to_vec();
        for layer in 0..self.spec.n_layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let normed = self.norm(&name("attn_norm.weight"), &x);
            let mut q = self.linear(&name("attn_q"), &normed);
            let mut k = self.linear(&name("attn_k"), &normed);
            let v = self.linear(&name("attn_v"), &normed);
            self.rotate(&mut q, position);
            self.rotate(&mut k, position);
            self.past[layer].push((k, v));
            let attended = self.attend(layer, &q);
            let added = self.linear(&name("attn_output"), &attended);
            x.iter_mut().zip(added).for_each(|(x, y)| *x += y);
            let normed = self.norm(&name("ffn_norm.weight"), &x);
            let gate = self.linear(&name("ffn_gate"), &normed);
            let up = self.linear(&name("ffn_up"), &normed);
            let inner: Vec<f64> =
                gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
            let added = self.linear(&name("ffn_down"), &inner);
            x.iter_mut().zip(added).for_each(|(x, y)| *x += y);
        }
        let normed = self.norm("output_norm.weight", &x);
        self.linear(if self.spec.tied_head { "token_embd" } else { "output" }, &normed)
    }
}

#[test]
fn every_kind_of_model_computes_what_the_textbook_says() {
    for (qwen2, rope_factors) in [(false, false), (false, true), (true, false), (true, true)] {
        let tiny = TinyModel { qwen2, rope_factors, quantised: false, ..TinyModel::default() };
        let gguf = Gguf::from_bytes(&tiny.bytes()).unwrap();
        let model = Model::load_with_threads(&gguf, Device::Cpu, 2).unwrap();
        let spec = model.spec().clone();
        let past = vec![Vec::new(); spec.n_layers];
        let mut oracle = Oracle { gguf: &gguf, spec, past };
        let tokens: Vec<u32> = (0..70).map(|i| i * 37 % model.vocab_size() as u32).collect();
        let mut cache = model.new_cache(tokens.len()).unwrap();
        let logits = model.forward(&tokens, &mut cache, Logits::All).unwrap();
        let (mut error, mut power) = (0.0, 0.0);
        for (row, &token) in logits.chunks_exact(model.vocab_size()).zip(&tokens) {
            for (logit, expected) in row.iter().zip(oracle.step(token)) {
                error += (f64::from(*logit) - expected).powi(2);
                power += expected.powi(2);
            }
        }
        assert!(error / power < NMSE_MAX, "qwen2 {qwen2}: NMSE {}", error / power);
    }
}
