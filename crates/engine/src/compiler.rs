//! The thread that compiles grammars, so that neither the caller's thread nor the engine's does.
//!
//! A grammar that was compiled before does not come here: the submitter finds it in the cache.
//! Compilations run one after the other; each is bounded by [`Limits`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, Sender};
use tinyllm_constrain::{CompiledGrammar, Grammar, Limits};

use crate::error::EngineError;
use crate::grammar_cache::GrammarCache;
use crate::promise::Resolver;
use crate::scheduler::{Command, Shared, caught};
use crate::sequence::{Sequence, Ticket};
use crate::token_table::TokenTable;

/// The outcome of a compilation, and whom it is for.
pub(crate) enum Job {
    /// A sequence that goes to the scheduler with its grammar.
    Sequence(Box<Sequence>, Grammar),
    /// Somebody who wants to know whether it compiles.
    Check(Grammar, Resolver<Result<Arc<CompiledGrammar>, EngineError>>, Ticket),
}

/// What the thread works with.
pub(crate) struct Compiler {
    pub(crate) table: Arc<TokenTable>,
    pub(crate) cache: Arc<GrammarCache>,
    pub(crate) commands: Sender<Command>,
    pub(crate) shared: Arc<Shared>,
}

impl Compiler {
    /// Runs until every sender of jobs is gone.
    pub(crate) fn run(&self, jobs: &Receiver<Job>) {
        for job in jobs {
            if self.shared.closed.load(Ordering::Acquire) {
                // Dropping a job tells whom it was for, without the wait for those before it.
                continue;
            }
            match job {
                Job::Check(grammar, resolver, _ticket) => resolver.resolve(self.compile(grammar)),
                Job::Sequence(sequence, _) if sequence.is_gone() => {
                    self.shared.counters.cancelled.add(1 + sequence.others.len());
                }
                Job::Sequence(mut sequence, grammar) => match self.compile(grammar) {
                    Ok(compiled) => {
                        sequence.constrain(&compiled);
                        // The engine's end drops the sequence, which tells its reader.
                        drop(self.commands.send(Command::Submit(sequence)));
                    }
                    Err(error) => {
                        self.shared.counters.failed.add(sequence.fail(&error));
                    }
                },
            }
        }
    }

    fn compile(&self, grammar: Grammar) -> Result<Arc<CompiledGrammar>, EngineError> {
        if let Some(compiled) = self.cache.get(&grammar) {
            return Ok(compiled);
        }
        let compiled = caught(|| {
            let vocabulary = self.table.vocabulary()?;
            Ok(tinyllm_constrain::compile(&grammar, &vocabulary, &Limits::default())?)
        })?;
        self.cache.insert(grammar, &compiled);
        Ok(compiled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promise::{block_on, promise};
    use crossbeam_channel::unbounded;

    #[test]
    fn after_close_nothing_is_compiled_and_nobody_waits() {
        let table = TokenTable::new(vec![b"a".to_vec()], |_| false, Vec::new(), Vec::new());
        let cache = Arc::new(GrammarCache::new(1 << 20));
        let (commands, _) = unbounded();
        let shared = Arc::new(Shared::default());
        let compiler = Compiler {
            table: Arc::new(table),
            cache: Arc::clone(&cache),
            commands,
            shared: Arc::clone(&shared),
        };
        let compiled = [false, true].map(|closed| {
            shared.closed.store(closed, Ordering::Release);
            let (jobs, inbox) = unbounded();
            let (resolver, answer) = promise();
            let ticket = Ticket::take(&Arc::default(), 1).expect("a place");
            let sent = jobs.send(Job::Check(Grammar::Regex("a*".to_owned()), resolver, ticket));
            drop((sent, jobs));
            compiler.run(&inbox);
            block_on(answer).is_some()
        });
        assert_eq!((compiled, cache.size().0), ([true, false], 1));
    }
}
