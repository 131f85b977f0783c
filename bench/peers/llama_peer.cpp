// Times llama.cpp through its C API, one measurement per line of standard input, so that a benchmark can interleave its
// own measurements with the peer's in one run.
//
//   llama_peer <folder of the libraries, or one CPU backend file> <model.gguf> <threads>
//
//   decode <depth> <n>     n single-token steps behind a context of <depth> tokens
//   prefill <n>            a prompt of n tokens, whole
//   batch <rows> <n>       n steps of <rows> sequences, each behind 128 tokens
//   greedy <n> <id...>     n greedy tokens after a prompt of ids
//
// Every answer is one line of JSON: {"seconds":[...]} with one figure per step (decode, batch) or per prompt (prefill), or
// {"tokens":[...]}. Tokens are decoded without sampling: the peer is charged for its forward pass alone.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

namespace {

constexpr int kContext = 40960, kBatch = 2048, kMicroBatch = 512, kSequences = 32, kBatchDepth = 128;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void fail(const std::string &what) {
  std::fprintf(stderr, "llama_peer: %s\n", what.c_str());
  std::exit(1);
}

/// Token ids that repeat nothing for a long while; any will do, since only the time is of interest.
int some_token(int i) { return (i * 7919) % 49000; }

class Peer {
 public:
  Peer(const std::string &backends, const std::string &model_path, int threads) {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    if (backends.size() > 3 && backends.substr(backends.size() - 3) == ".so") {
      ggml_backend_load(backends.c_str());
    } else {
      ggml_backend_load_all_from_path(backends.c_str());
    }
    llama_backend_init();
    auto model_params = llama_model_default_params();
    model_params.n_gpu_layers = 0;
    auto *model = llama_model_load_from_file(model_path.c_str(), model_params);
    if (!model) fail("cannot load " + model_path);
    vocab_size_ = llama_vocab_n_tokens(llama_model_get_vocab(model));
    auto params = llama_context_default_params();
    params.n_ctx = kContext;
    params.n_batch = kBatch;
    params.n_ubatch = kMicroBatch;
    params.n_seq_max = kSequences;
    params.kv_unified = true;
    params.n_threads = params.n_threads_batch = threads;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.no_perf = true;
    context_ = llama_init_from_model(model, params);
    if (!context_) fail("cannot make a context");
    batch_ = llama_batch_init(kBatch, 0, 1);
  }

  std::vector<double> decode(int depth, int n) {
    if (depth_ == depth) {
      llama_memory_seq_rm(llama_get_memory(context_), 0, depth, -1);
    } else {
      clear();
      feed(0, depth, 0);
      depth_ = depth;
    }
    std::vector<double> seconds;
    for (int i = 0; i < n; i++) {
      const double start = now();
      add(0, some_token(i), depth + i, 0, true);
      step(1);
      seconds.push_back(now() - start);
    }
    return seconds;
  }

  std::vector<double> prefill(int n) {
    clear();
    const double start = now();
    feed(0, n, 0);
    return {now() - start};
  }

  std::vector<double> batch(int rows, int n) {
    clear();
    for (int row = 0; row < rows; row++) feed(row, kBatchDepth, row);
    std::vector<double> seconds;
    for (int i = 0; i < n; i++) {
      const double start = now();
      for (int row = 0; row < rows; row++) add(row, some_token(i + row), kBatchDepth + i, row, true);
      step(rows);
      seconds.push_back(now() - start);
    }
    return seconds;
  }

  std::vector<int> greedy(int n, const std::vector<int> &prompt) {
    clear();
    const int length = static_cast<int>(prompt.size());
    for (int i = 0; i < length; i++) add(i, prompt[i], i, 0, i == length - 1);
    step(length);
    std::vector<int> tokens;
    for (int i = 0; i < n; i++) {
      const float *logits = llama_get_logits_ith(context_, -1);
      int best = 0;
      for (int id = 1; id < vocab_size_; id++)
        if (logits[id] > logits[best]) best = id;
      tokens.push_back(best);
      add(0, best, length + i, 0, true);
      step(1);
    }
    return tokens;
  }

 private:
  void clear() {
    llama_memory_clear(llama_get_memory(context_), true);
    depth_ = -1;
  }

  void add(int slot, int token, int position, int sequence, bool logits) {
    batch_.token[slot] = token;
    batch_.pos[slot] = position;
    batch_.n_seq_id[slot] = 1;
    batch_.seq_id[slot][0] = sequence;
    batch_.logits[slot] = logits;
  }

  void step(int rows) {
    batch_.n_tokens = rows;
    if (llama_decode(context_, batch_) != 0) fail("llama_decode failed");
    llama_synchronize(context_);
  }

  /// A prompt of n tokens for a sequence, in batches; logits of its last token only.
  void feed(int sequence, int n, int salt) {
    for (int start = 0; start < n; start += kBatch) {
      const int rows = std::min(kBatch, n - start);
      for (int i = 0; i < rows; i++) add(i, some_token(start + i + salt), start + i, sequence, start + i == n - 1);
      step(rows);
    }
  }

  llama_context *context_ = nullptr;
  llama_batch batch_{};
  int vocab_size_ = 0;
  /// The depth that sequence 0 was left at by `decode`; -1 when it holds something else.
  int depth_ = -1;
};

template <typename T>
void print(const char *name, const std::vector<T> &values) {
  std::cout << "{\"" << name << "\":[";
  for (size_t i = 0; i < values.size(); i++) std::cout << (i ? "," : "") << values[i];
  std::cout << "]}" << std::endl;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 4) fail("usage: llama_peer BACKENDS MODEL THREADS");
  Peer peer(argv[1], argv[2], std::atoi(argv[3]));
  std::cout.precision(9);
  std::cout << "{\"ready\":true}" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string what;
    int a = 0, b = 0;
    words >> what >> a;
    if (what == "prefill") {
      print("seconds", peer.prefill(a));
    } else if (what == "greedy") {
      std::vector<int> prompt;
      for (int id; words >> id;) prompt.push_back(id);
      print("tokens", peer.greedy(a, prompt));
    } else if (what == "decode" && words >> b) {
      print("seconds", peer.decode(a, b));
    } else if (what == "batch" && words >> b && a <= kSequences) {
      print("seconds", peer.batch(a, b));
    } else {
      fail("cannot read the request: " + line);
    }
  }
}
