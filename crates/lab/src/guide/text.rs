//! The commands of a guide: fenced blocks, and comments for what a reader does by hand.
//!
//! ````text
//! ```sh alpha           commands for the host alpha; `both`: for alpha, then for beta
//! ```sh client &        commands that run on the client while the guide goes on
//! <!-- wait client -->  until these commands have ended
//! <!-- cable alpha out -->, <!-- cable alpha in -->
//! <!-- copy alpha /etc/steadfast beta -->
//! ````
//!
//! Blocks of other languages, and all other comments, are not executed.

use crate::run::WrongUse;

/// A host of the guide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuideHost {
    Node(usize),
    Client,
}

/// The nodes' names.
pub const NODES: [&str; 2] = ["alpha", "beta"];

impl GuideHost {
    pub fn name(self) -> &'static str {
        match self {
            Self::Node(index) => NODES[index],
            Self::Client => "client",
        }
    }
}

/// An action that the guide asks of its reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuideAction {
    /// Runs commands on a host and waits for their end.
    Run { host: GuideHost, commands: String },
    /// Starts commands on the client.
    Start { commands: String },
    /// Waits for the end of the commands that `Start` started.
    Wait,
    /// Pulls a node's cable, or plugs it in.
    Cable { node: usize, plugged: bool },
    /// Copies a folder from one node to the other.
    Copy { from: usize, folder: String },
}

/// An action, and the line of the guide that demands it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuideStep {
    pub line: usize,
    pub action: GuideAction,
}

/// All steps of a guide, in order.
///
/// # Errors
/// Names the line that cannot be executed.
pub fn steps(text: &str) -> Result<Vec<GuideStep>, WrongUse> {
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
            let commands = block.join("\n") + "\n";
            let words: Vec<_> = language.split_whitespace().collect();
            let run = |host| GuideAction::Run {
                host,
                commands: commands.clone(),
            };
            match words[..] {
                ["sh", "both"] => vec![run(GuideHost::Node(0)), run(GuideHost::Node(1))],
                ["sh", "client"] => vec![run(GuideHost::Client)],
                ["sh", "client", "&"] => vec![GuideAction::Start { commands }],
                ["sh", host] => vec![run(GuideHost::Node(
                    node(host).ok_or_else(|| wrong("no such host"))?,
                ))],
                ["sh", ..] => return Err(wrong("name the host after `sh`")),
                _ => vec![],
            }
        } else if let Some(comment) = text
            .strip_prefix("<!-- ")
            .and_then(|rest| rest.strip_suffix(" -->"))
        {
            let words: Vec<_> = comment.split_whitespace().collect();
            let known = match words[..] {
                ["wait", "client"] => Some(GuideAction::Wait),
                ["cable", host, way @ ("in" | "out")] => node(host).map(|node| GuideAction::Cable {
                    node,
                    plugged: way == "in",
                }),
                ["copy", from, folder, to] => {
                    node(from).filter(|from| node(to) == Some(1 - from)).map(|from| {
                        let folder = folder.to_owned();
                        GuideAction::Copy { from, folder }
                    })
                }
                _ => None,
            };
            vec![known.ok_or_else(|| wrong("cannot be done by a program"))?]
        } else {
            vec![]
        };
        steps.extend(actions.into_iter().map(|action| GuideStep { line, action }));
    }
    Ok(steps)
}

fn node(name: &str) -> Option<usize> {
    NODES.iter().position(|node| *node == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_comments_are_steps() {
        let text = "# Guide\n\n```sh both\necho 1\n```\n\nnot this: `rm`\n```text\na picture\n```\n\
                    ```sh client &\ncurl\n```\n<!-- cable beta out -->\n<!-- wait client -->\n\
                    <!-- copy beta /etc/x alpha -->\n";
        let run = |index| GuideAction::Run {
            host: GuideHost::Node(index),
            commands: "echo 1\n".to_owned(),
        };
        let expected = [
            (3, run(0)),
            (3, run(1)),
            (
                11,
                GuideAction::Start {
                    commands: "curl\n".to_owned(),
                },
            ),
            (
                14,
                GuideAction::Cable {
                    node: 1,
                    plugged: false,
                },
            ),
            (15, GuideAction::Wait),
            (
                16,
                GuideAction::Copy {
                    from: 1,
                    folder: "/etc/x".to_owned(),
                },
            ),
        ];
        assert_eq!(
            steps(text).unwrap(),
            expected.map(|(line, action)| GuideStep { line, action })
        );
    }

    #[test]
    fn what_cannot_be_executed_is_refused() {
        for (text, error) in [
            ("```sh\nls\n```", "line 1: name the host after `sh`: ```sh"),
            ("\n```sh gamma\nls\n```", "line 2: no such host: ```sh gamma"),
            (
                "<!-- cable alpha off -->",
                "line 1: cannot be done by a program: <!-- cable alpha off -->",
            ),
            (
                "<!-- copy alpha /x alpha -->",
                "line 1: cannot be done by a program: <!-- copy alpha /x alpha -->",
            ),
        ] {
            assert_eq!(steps(text).unwrap_err().to_string(), error);
        }
    }
}
