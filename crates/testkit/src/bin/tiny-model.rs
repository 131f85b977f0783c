//! `tiny-model PATH [--seed N] [--qwen2]`: writes the tiny random model, for tests in other
//! languages.

use std::path::PathBuf;
use std::process::ExitCode;

use tinyllm_testkit::TinyModel;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}\nusage: tiny-model PATH [--seed N] [--qwen2]");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let mut path = None;
    let mut model = TinyModel::default();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seed" => {
                let seed = arguments.next().ok_or("--seed needs a number")?;
                model.seed = seed.parse().map_err(|error| format!("--seed {seed}: {error}"))?;
            }
            "--qwen2" => model.qwen2 = true,
            _ if path.is_none() && !argument.starts_with('-') => {
                path = Some(PathBuf::from(argument));
            }
            _ => return Err(format!("unknown argument {argument}")),
        }
    }
    let path = path.ok_or("PATH is missing")?;
    // Beside it and then over it, so that a reader never sees half a file.
    let mut partial = path.clone().into_os_string();
    partial.push(format!(".{}", std::process::id()));
    std::fs::write(&partial, model.bytes())
        .and_then(|()| std::fs::rename(&partial, &path))
        .map_err(|error| format!("{}: {error}", path.display()))
}
