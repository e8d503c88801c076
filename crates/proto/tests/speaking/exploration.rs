//! Explores a model whose properties are rules, and cases that must occur.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};

/// Explores the model, and returns the names of the broken rules and of the cases that did not occur.
pub fn explore<M>(model: M) -> Vec<&'static str>
where
    M: Model + Copy + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    let found = checker.discoveries();
    let is_wrong = |property: &Property<M>| {
        let is_always = property.expectation == Expectation::Always;
        found.contains_key(property.name) == is_always
    };
    let wrong = model.properties().into_iter().filter(is_wrong);
    wrong
        .map(|property| {
            if let Some(path) = found.get(property.name) {
                println!("{}: {:?}", property.name, path.clone().into_actions());
            }
            property.name
        })
        .collect()
}
