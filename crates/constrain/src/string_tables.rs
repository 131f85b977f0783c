//! Tables over a vocabulary for JSON strings.

use crate::json_chars::CharForm;
use crate::vocabulary::Vocabulary;

/// Placeholder.
#[derive(Debug)]
pub(crate) struct StringTables {}

impl StringTables {
    pub(crate) fn new(_: &Vocabulary, _: CharForm) -> Self {
        Self {}
    }
}
