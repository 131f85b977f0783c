/// A JSON pointer that grows and shrinks as a walk goes down and up.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pointer(String);

impl Pointer {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The pointer to a member, as text.
    pub(crate) fn child(&self, key: &str) -> String {
        let mut child = self.clone();
        child.push(key);
        child.0
    }

    fn push(&mut self, key: &str) {
        self.0.push('/');
        for c in key.chars() {
            match c {
                '~' => self.0.push_str("~0"),
                '/' => self.0.push_str("~1"),
                c => self.0.push(c),
            }
        }
    }

    /// Goes down to a member, and gives the mark to come back by.
    pub(crate) fn enter(&mut self, key: &str) -> usize {
        let mark = self.0.len();
        self.push(key);
        mark
    }

    pub(crate) fn leave(&mut self, mark: usize) {
        self.0.truncate(mark);
    }
}
