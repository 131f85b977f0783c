//! Where the real models are that tests run on.
//!
//! A test that needs a model fails without it; passing silently would prove nothing. `npm test`
//! pulls the models before it runs the tests.

use std::path::{Path, PathBuf};

/// Names and files as in the manifest of models.
const SMOLLM2: [&str; 2] = ["smollm2-135m-instruct", "SmolLM2-135M-Instruct.Q4_1.gguf"];
const QWEN_CODER: [&str; 2] =
    ["qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"];

/// `SmolLM2` 135M Instruct in `Q4_1`: the `llama` architecture with a tied head.
pub fn smollm2() -> PathBuf {
    find(SMOLLM2)
}

/// Qwen2.5 Coder 0.5B Instruct in `Q4_K_M`: the `qwen2` architecture with a separate head.
pub fn qwen_coder() -> PathBuf {
    find(QWEN_CODER)
}

/// Looks in `TINYLLM_TEST_MODELS_DIR`, else in the folder that models are pulled into.
fn find([name, file]: [&str; 2]) -> PathBuf {
    let folder = folder("TINYLLM_TEST_MODELS_DIR").unwrap_or_else(cache_folder);
    let candidates = [folder.join(name).join(file), folder.join(file)];
    match candidates.iter().find(|path| path.is_file()) {
        Some(path) => path.clone(),
        None => panic!(
            "this test needs the model {name}, and neither {} nor {} is there; `npm test` pulls \
             it, or set TINYLLM_TEST_MODELS_DIR to a folder that holds {file}",
            candidates[0].display(),
            candidates[1].display()
        ),
    }
}

fn folder(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The same folder as the package's own: `TINYLLM_CACHE`, else the platform's cache folder.
fn cache_folder() -> PathBuf {
    if let Some(folder) = folder("TINYLLM_CACHE") {
        return folder;
    }
    let home = folder(if cfg!(windows) { "USERPROFILE" } else { "HOME" }).unwrap_or_default();
    let caches = if cfg!(windows) {
        folder("LOCALAPPDATA").unwrap_or_else(|| home.join("AppData").join("Local"))
    } else if cfg!(target_os = "macos") {
        home.join("Library").join("Caches")
    } else {
        let xdg = folder("XDG_CACHE_HOME").filter(|folder| Path::is_absolute(folder));
        xdg.unwrap_or_else(|| home.join(".cache"))
    };
    caches.join("tinyllm")
}
