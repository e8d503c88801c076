//! Checks whether logs can be spilled to the configured directory.

use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use linux::spill::SpillDir;
use proto::spill::Depot;

use super::findings::Findings;
use crate::config::{AtLimitSetting, Config, ServiceSettings};

/// Adds the problems of the spill directory, and warnings about it, to `findings`.
pub(super) fn check(config: &Config, findings: &mut Findings) {
    let spills = |service: &ServiceSettings| service.at_limit == AtLimitSetting::Spill;
    if !config.services.iter().any(spills) {
        return;
    }
    let dir = &config.log.spill_dir;
    let note = |what| config.problem("log.spill_dir", what);
    let dir_name = dir.display();
    let written = SpillDir(dir.clone())
        .open()
        .and_then(|mut file| file.append(0, &[0]));
    if let Err(error) = written {
        let what = format!("no file can be written in {dir_name}: {error}; allowed: a directory on a disk");
        findings.problems.push(note(what));
    } else if statfs(dir).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC) {
        let what = format!("{dir_name} is on a tmpfs: what is spilled there stays in memory");
        findings.warnings.push(note(what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(dir: &str) -> Findings {
        let text = format!(
            "[node]\nname = \"alpha\"\n[peer]\nname = \"beta\"\naddress = \"10.0.0.3\"\n\
             [log]\nat_limit = \"spill\"\nspill_dir = \"{dir}\"\n\
             [[service]]\nname = \"web\"\naddress = \"10.0.0.100\"\nport = 80\ninterface = \"eth0\"\n\
             policy = \"http\"\nprimary = \"alpha\"\n"
        );
        let config = Config::parse("steadfast.toml".as_ref(), &text).expect("it is right");
        let mut findings = Findings::default();
        check(&config, &mut findings);
        findings
    }

    #[test]
    fn a_directory_must_be_there_and_should_be_on_a_disk() {
        let missing = found("/nonexistent/spill");
        let [problem] = &missing.problems[..] else {
            panic!("{missing:?}")
        };
        assert_eq!((problem.line, problem.field.as_str()), (8, "log.spill_dir"));
        assert!(
            problem.what.contains("No such file or directory"),
            "{}",
            problem.what
        );
        if statfs("/dev/shm").is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC) {
            let in_memory = found("/dev/shm");
            assert_eq!((in_memory.problems.len(), in_memory.warnings.len()), (0, 1));
        }
    }
}
