//! Checks the programs whose order is to be recorded.

use linux::executable::preload_obstacle;
use nix::unistd::User;

use super::findings::Findings;
use crate::config::Config;

/// Adds a problem for each program into which the library cannot be loaded, and for each user that does not exist.
pub(super) fn check(config: &Config, findings: &mut Findings) {
    for (index, service) in config.services.iter().enumerate() {
        let Some(order) = &service.recorded_order else {
            continue;
        };
        let mut problem = |key: &str, what: String| {
            let field = format!("service[{index}].{key}");
            findings.problems.push(config.problem(&field, what));
        };
        if let Some(program) = &order.program {
            let name = program.display();
            match preload_obstacle(program) {
                Ok(None) => {}
                Ok(Some(obstacle)) => problem(
                    "recorded_order_program",
                    format!("the order of {name} cannot be recorded: {obstacle}"),
                ),
                Err(error) => problem("recorded_order_program", format!("cannot read {name}: {error}")),
            }
        }
        if let Some(user) = &order.user
            && !matches!(User::from_name(user), Ok(Some(_)))
        {
            problem("recorded_order_user", format!("there is no user {user}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_the_library_and_an_unknown_user_are_problems() {
        let text = |program: &str, user: &str| {
            format!(
                "[node]\nname = \"alpha\"\n[peer]\nname = \"beta\"\naddress = \"10.0.0.3\"\n\
                 [[service]]\nname = \"web\"\naddress = \"10.0.0.100\"\nport = 80\ninterface = \"eth0\"\n\
                 policy = \"replica\"\nprimary = \"alpha\"\nrecorded_order = \"/run/order.sock\"\n\
                 recorded_order_program = \"{program}\"\nrecorded_order_user = \"{user}\"\n"
            )
        };
        let found = |program: &str, user: &str| {
            let config = Config::parse("steadfast.toml".as_ref(), &text(program, user)).expect("it is right");
            let mut findings = Findings::default();
            check(&config, &mut findings);
            let problems = findings.problems.into_iter();
            problems.map(|one| (one.line, one.what)).collect::<Vec<_>>()
        };
        let own = std::env::current_exe().expect("this test");
        assert_eq!(found(own.to_str().expect("a path"), "root"), []);
        let script = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(script.path(), "#!/bin/sh\n").expect("written");
        let problems = found(script.path().to_str().expect("a path"), "no-such-user");
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert_eq!((problems[0].0, problems[1].0), (14, 15));
        assert!(problems[0].1.contains("it is a script"), "{problems:?}");
        assert_eq!(problems[1].1, "there is no user no-such-user");
    }
}
