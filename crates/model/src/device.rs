//! Where the forward pass runs.

use std::str::FromStr;

use crate::ModelError;

/// A device the forward pass runs on. Other devices plug in here; until one does, its name is an
/// error that says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Device {
    /// The CPU.
    #[default]
    Cpu,
}

impl FromStr for Device {
    type Err = ModelError;

    fn from_str(name: &str) -> Result<Self, ModelError> {
        match name {
            "cpu" => Ok(Self::Cpu),
            other => Err(ModelError::Device { device: other.to_owned() }),
        }
    }
}
