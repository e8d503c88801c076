//! The commands of a guide: fenced blocks, and comments for what a reader does by hand.
//!
//! ````text
//! <!-- topology pair -->   the network in which the guide is played (`guide::topology`). It comes before all steps
//! ```sh alpha           commands for the host alpha; `both`: for the first host with systemd, then for the second
//! ```sh client &        commands that run on a host without systemd while the guide goes on
//! <!-- wait client -->  until these commands have ended
//! <!-- cable alpha out -->, <!-- cable alpha in -->
//! <!-- copy alpha /etc/steadfast beta -->
//! ````
//!
//! Blocks of other languages are not executed. Any other comment on a line of its own is an error.

use super::topology::{GuideHost, GuideTopology, TOPOLOGIES};
use crate::run::WrongUse;

/// An action that the guide asks of its reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuideAction {
    /// Runs commands on a host and waits for their end.
    Run { host: GuideHost, commands: String },
    /// Starts commands on a host without systemd.
    Start { other: usize, commands: String },
    /// Waits for the end of the commands that `Start` started on this host.
    Wait { other: usize },
    /// Pulls a cable, or plugs it in.
    Cable { cable: usize, plugged: bool },
    /// Copies a folder from one host with systemd to the other host with systemd.
    Copy { from: usize, folder: String },
}

/// An action, and the line of the guide that demands it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuideStep {
    pub line: usize,
    pub action: GuideAction,
}

/// The topology of a guide and all its steps, in order.
///
/// # Errors
/// Names the line that cannot be executed.
pub fn steps(text: &str) -> Result<(&'static GuideTopology, Vec<GuideStep>), WrongUse> {
    let mut topology = None;
    let mut steps = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((text, line)) = lines.next() {
        let wrong = |what: &str| WrongUse(format!("line {line}: {what}: {text}"));
        let actions = if let Some(language) = text.strip_prefix("```") {
            let block: Vec<_> = lines
                .by_ref()
                .map(|(text, _)| text)
                .take_while(|text| *text != "```")
                .collect();
            let words: Vec<_> = language.split_whitespace().collect();
            if words.first() != Some(&"sh") {
                continue;
            }
            let topology = topology.ok_or_else(|| wrong(NO_TOPOLOGY))?;
            commands(topology, &words[1..], &(block.join("\n") + "\n")).map_err(wrong)?
        } else if let Some(comment) = text
            .strip_prefix("<!-- ")
            .and_then(|rest| rest.strip_suffix(" -->"))
        {
            let words: Vec<_> = comment.split_whitespace().collect();
            if let ["topology", name] = words[..] {
                let known = TOPOLOGIES.into_iter().find(|topology| topology.name == name);
                topology = Some(known.ok_or_else(|| wrong("no such topology"))?);
                continue;
            }
            let topology = topology.ok_or_else(|| wrong(NO_TOPOLOGY))?;
            vec![by_hand(topology, &words).ok_or_else(|| wrong("unknown action"))?]
        } else {
            continue;
        };
        steps.extend(actions.into_iter().map(|action| GuideStep { line, action }));
    }
    let topology = topology.ok_or_else(|| WrongUse(NO_TOPOLOGY.to_owned()))?;
    Ok((topology, steps))
}

const NO_TOPOLOGY: &str = "a comment <!-- topology NAME --> must come first";

/// The actions of a block of commands. `words` are the words after `sh` in the block's first line. They name the hosts.
fn commands(
    topology: &GuideTopology,
    words: &[&str],
    commands: &str,
) -> Result<Vec<GuideAction>, &'static str> {
    let commands = commands.to_owned();
    let run = |host| GuideAction::Run {
        host,
        commands: commands.clone(),
    };
    match *words {
        ["both"] => Ok([0, 1].map(|index| run(GuideHost::Machine(index))).into()),
        [host] => Ok(vec![run(topology.host(host).ok_or("no such host")?)]),
        [host, "&"] => {
            let other = topology.other(host).ok_or("no such host without systemd")?;
            Ok(vec![GuideAction::Start { other, commands }])
        }
        _ => Err("name the host after `sh`"),
    }
}

/// The action that a comment demands. `None` if the action is unknown.
fn by_hand(topology: &GuideTopology, words: &[&str]) -> Option<GuideAction> {
    match *words {
        ["wait", host] => Some(GuideAction::Wait {
            other: topology.other(host)?,
        }),
        ["cable", cable, way @ ("in" | "out")] => Some(GuideAction::Cable {
            cable: topology.cable(cable)?,
            plugged: way == "in",
        }),
        ["copy", from, folder, to] => {
            let from = topology.machine(from)?;
            (topology.machine(to)? == 1 - from).then(|| GuideAction::Copy {
                from,
                folder: folder.to_owned(),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guide::topology::{EDGE, PAIR};

    fn run(host: GuideHost, commands: &str) -> GuideAction {
        GuideAction::Run {
            host,
            commands: commands.to_owned(),
        }
    }

    #[test]
    fn blocks_and_comments_are_steps() {
        let text = "<!-- topology pair -->\n\n```sh both\necho 1\n```\n\nnot this: `rm`\n```text\na picture\n```\n\
                    ```sh client &\ncurl\n```\n<!-- cable beta out -->\n<!-- wait client -->\n\
                    <!-- copy beta /etc/x alpha -->\n";
        let expected = [
            (3, run(GuideHost::Machine(0), "echo 1\n")),
            (3, run(GuideHost::Machine(1), "echo 1\n")),
            (
                11,
                GuideAction::Start {
                    other: 0,
                    commands: "curl\n".to_owned(),
                },
            ),
            (
                14,
                GuideAction::Cable {
                    cable: 1,
                    plugged: false,
                },
            ),
            (15, GuideAction::Wait { other: 0 }),
            (
                16,
                GuideAction::Copy {
                    from: 1,
                    folder: "/etc/x".to_owned(),
                },
            ),
        ];
        let (topology, steps) = steps(text).unwrap();
        assert_eq!(topology, &PAIR);
        assert_eq!(steps, expected.map(|(line, action)| GuideStep { line, action }));
    }

    #[test]
    fn each_topology_has_its_own_hosts() {
        let text =
            "<!-- topology edge -->\n```sh r2\nls\n```\n```sh node-b\nls\n```\n```sh server &\nls\n```\n";
        let (topology, steps) = steps(text).unwrap();
        assert_eq!(topology, &EDGE);
        let actions = steps.into_iter().map(|step| step.action);
        let expected = [
            run(GuideHost::Machine(1), "ls\n"),
            run(GuideHost::Other(3), "ls\n"),
            GuideAction::Start {
                other: 1,
                commands: "ls\n".to_owned(),
            },
        ];
        assert!(actions.eq(expected));
    }

    #[test]
    fn what_cannot_be_executed_is_refused() {
        for (text, error) in [
            ("```sh\nls\n```", "line 2: name the host after `sh`: ```sh"),
            ("\n```sh gamma\nls\n```", "line 3: no such host: ```sh gamma"),
            (
                "```sh alpha &\nls\n```",
                "line 2: no such host without systemd: ```sh alpha &",
            ),
            (
                "<!-- cable alpha off -->",
                "line 2: unknown action: <!-- cable alpha off -->",
            ),
            (
                "<!-- copy alpha /x alpha -->",
                "line 2: unknown action: <!-- copy alpha /x alpha -->",
            ),
            (
                "<!-- topology moon -->",
                "line 2: no such topology: <!-- topology moon -->",
            ),
        ] {
            let text = format!("<!-- topology pair -->\n{text}");
            assert_eq!(steps(&text).unwrap_err().to_string(), error);
        }
        let error = steps("```sh alpha\nls\n```").unwrap_err().to_string();
        assert_eq!(
            error,
            "line 1: a comment <!-- topology NAME --> must come first: ```sh alpha"
        );
        assert!(steps("# Nothing\n").is_err());
    }
}
