//! What a grammar is, without a model.

use napi::bindgen_prelude::AsyncTask;
use napi_derive::napi;
use tinyllm_constrain::{
    ConstrainError, Dfa, Grammar, Json, Limits, Subset, grammar_to_node, json_object_regex_within,
    json_schema_to_regex, node_to_dfa,
};

use crate::offload::{Offload, offload};
use crate::outcome::{NativeFailure, TextOutcome, outcomes};

outcomes! {
    CheckOutcome(bool);
}

/// Checks a description and the patterns and schemas in it.
#[napi(catch_unwind)]
pub fn check_grammar(description: String) -> CheckOutcome {
    let check = |grammar: &Grammar| match grammar {
        // A trigger runs beside its body's automaton and has no tree of its own.
        Grammar::Trigger { body, .. } => grammar_to_node(body, &Limits::default()),
        grammar => grammar_to_node(grammar, &Limits::default()),
    };
    Grammar::from_json(&description).and_then(|grammar| check(&grammar)).map(|_| true).into()
}

/// The regex text of a schema of the strict subset.
#[napi(catch_unwind)]
pub fn schema_to_regex(schema: String) -> TextOutcome {
    Json::parse(&schema).and_then(|schema| json_schema_to_regex(&schema)).into()
}

/// The regex text of any JSON object nested at most so deep.
#[napi(catch_unwind, js_name = "jsonObjectRegex")]
pub fn json_object_regex_text(depth: u32) -> TextOutcome {
    json_object_regex_within(depth as usize, &Limits::default()).into()
}

/// The canonical automaton of a grammar, as JSON text: `{regex, n_states, accept, runs, sha256}`.
#[napi(ts_return_type = "Promise<TextOutcome>")]
pub fn grammar_table(description: String) -> AsyncTask<Offload<TextOutcome>> {
    offload(move || table(&description).into())
}

fn table(description: &str) -> Result<String, ConstrainError> {
    let grammar = Grammar::from_json(description)?;
    let limits = Limits::default();
    let dfa = node_to_dfa(&grammar_to_node(&grammar, &limits)?, &limits)?.ok_or_else(|| {
        ConstrainError::Grammar {
            message: "no text follows this grammar".to_owned(),
            pointer: String::new(),
        }
    })?;
    Ok(golden_form(regex_text(&grammar)?, &dfa).dumps())
}

/// The pattern, for the grammars that have one.
fn regex_text(grammar: &Grammar) -> Result<Option<String>, ConstrainError> {
    Ok(match grammar {
        Grammar::Regex(pattern) => Some(pattern.clone()),
        Grammar::Schema { text, subset: Subset::Strict, .. } => {
            Some(json_schema_to_regex(&Json::parse(text)?)?)
        }
        Grammar::JsonObject { depth, finite: false } => {
            Some(json_object_regex_within(*depth as usize, &Limits::default())?)
        }
        _ => None,
    })
}

fn golden_form(regex: Option<String>, dfa: &Dfa) -> Json {
    let int = |n: i64| Json::Int(n.to_string());
    let runs = dfa.runs().into_iter().map(|row| {
        let row = row.into_iter().map(|(first, last, target)| {
            Json::Arr(vec![int(first.into()), int(last.into()), int(target.into())])
        });
        Json::Arr(row.collect())
    });
    let members = [
        ("regex", regex.map_or(Json::Null, Json::Str)),
        ("n_states", int(dfa.n_states as i64)),
        ("accept", Json::Arr(dfa.accepting().into_iter().map(|s| int(s as i64)).collect())),
        ("runs", Json::Arr(runs.collect())),
        ("sha256", Json::Str(dfa.sha256())),
    ];
    Json::Obj(members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}
