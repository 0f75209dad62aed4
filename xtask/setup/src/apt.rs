//! Debian and Ubuntu packages: installed where this user may, else printed as commands to run.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use anyhow::{Context, Result};

use crate::NeedsUser;
use crate::process::{find_program, output, quote, run_quietly};
use crate::progress::Step;

/// How this user may run a program as root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rights {
    Root,
    /// sudo asks for no password.
    Sudo,
    None,
}

type Words = Vec<String>;

/// Installs the packages; `missing` says in the message for the user what they are for.
pub(crate) fn install(packages: &[&str], missing: &str, command: &str) -> Result<()> {
    if find_program("apt-get").is_none() {
        return Err(NeedsUser(format!(
            "missing:\n{missing}Install these; there is no apt-get here to do it."
        ))
        .into());
    }
    let rights = rights();
    if rights == Rights::None {
        return Err(NeedsUser(refusal(packages, missing, command)).into());
    }
    // A package list that one source refuses to bring up to date may still serve.
    let _ = run_as_root(&update(), rights, "updating the package lists");
    for (name, command) in repository_commands(packages) {
        run_as_root(&command, rights, name)?;
    }
    run_as_root(&install_command(packages), rights, &format!("installing {}", packages.join(" ")))
        .with_context(|| format!("cannot install {}", packages.join(" ")))
}

fn run_as_root(command: &[String], rights: Rights, name: &str) -> Result<()> {
    let command = with_rights(command, rights);
    let Some((program, arguments)) = command.split_first() else { return Ok(()) };
    let step = Step::begin(name);
    let mut command = Command::new(program);
    run_quietly(command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive"), &step)?;
    step.end("done");
    Ok(())
}

fn rights() -> Rights {
    let root = std::fs::metadata("/proc/self").is_ok_and(|data| data.uid() == 0);
    if root {
        Rights::Root
    } else if output(Command::new("sudo").args(["-n", "true"])).is_some() {
        Rights::Sudo
    } else {
        Rights::None
    }
}

fn with_rights(command: &[String], rights: Rights) -> Words {
    let prefix: &[&str] = match rights {
        Rights::Root => &[],
        Rights::Sudo => &["sudo", "-n", "DEBIAN_FRONTEND=noninteractive"],
        Rights::None => &["sudo"],
    };
    words(prefix).into_iter().chain(command.iter().cloned()).collect()
}

/// What a user without rights is told: what is missing, and the commands that install it.
fn refusal(packages: &[&str], missing: &str, again: &str) -> String {
    let repository = repository_commands(packages).into_iter().map(|(_, command)| command);
    let commands = std::iter::once(update()).chain(repository).chain([install_command(packages)]);
    let lines: Vec<String> =
        commands.map(|command| shell_line(&with_rights(&command, Rights::None))).collect();
    format!(
        "missing:\n{missing}Installing packages takes root's rights, which this user lacks. Run:\n\n  {}\n\n\
         and then `{again}` again.",
        lines.join("\n  ")
    )
}

fn update() -> Words {
    words(&["apt-get", "-o", "DPkg::Lock::Timeout=300", "update"])
}

fn install_command(packages: &[&str]) -> Words {
    let mut command =
        words(&["apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends"]);
    command.extend(words(packages));
    command
}

/// The commands that add LLVM's own repository, where LLVM is asked for and no known source has it.
fn repository_commands(packages: &[&str]) -> Vec<(&'static str, Words)> {
    let wanted = packages.contains(&"llvm-22-dev") && !has_candidate("llvm-22-dev");
    match os_release("VERSION_CODENAME") {
        Some(codename) if wanted => llvm_repository(&codename, downloader()),
        _ => Vec::new(),
    }
}

fn llvm_repository(codename: &str, downloader: &str) -> Vec<(&'static str, Words)> {
    const KEY: &str = "/etc/apt/keyrings/apt.llvm.org.asc";
    const LIST: &str = "/etc/apt/sources.list.d/llvm-22.list";
    let source =
        format!("deb [signed-by={KEY}] https://apt.llvm.org/{codename}/ llvm-toolchain-{codename}-22 main");
    let fetch = format!("mkdir -p /etc/apt/keyrings && {downloader} > {KEY} && chmod a+r {KEY}");
    vec![
        ("installing certificates", install_command(&["ca-certificates"])),
        ("fetching LLVM's signing key", words(&["sh", "-c", &fetch])),
        ("adding LLVM's repository", words(&["sh", "-c", &format!("echo {} > {LIST}", quote(&source))])),
        ("updating the package lists", update()),
    ]
}

/// A shell command that writes LLVM's signing key to its standard output with what is installed.
fn downloader() -> &'static str {
    if find_program("curl").is_some() {
        "curl -fsSL https://apt.llvm.org/llvm-snapshot.gpg.key"
    } else if find_program("wget").is_some() {
        "wget -qO- https://apt.llvm.org/llvm-snapshot.gpg.key"
    } else {
        "python3 -c 'import sys, urllib.request as r; \
         sys.stdout.buffer.write(r.urlopen(\"https://apt.llvm.org/llvm-snapshot.gpg.key\").read())'"
    }
}

fn has_candidate(package: &str) -> bool {
    let policy = output(Command::new("apt-cache").args(["policy", package]).env("LC_ALL", "C"));
    policy.is_some_and(|text| candidate(&text).is_some())
}

fn candidate(policy: &str) -> Option<&str> {
    let version = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    (version != "(none)").then_some(version)
}

/// What the distribution says of itself.
pub(crate) fn os_release(key: &str) -> Option<String> {
    value(&std::fs::read_to_string("/etc/os-release").ok()?, key)
}

fn value(os_release: &str, key: &str) -> Option<String> {
    let value = os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
    Some(value.trim_matches('"').to_owned()).filter(|value| !value.is_empty())
}

fn shell_line(words: &[String]) -> String {
    words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

fn words(words: &[&str]) -> Words {
    words.iter().map(|&word| word.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_candidate_is_read() {
        let policy = "llvm-22-dev:\n  Installed: (none)\n  Candidate: 1:22.1.8-1~deb12u1\n  Version table:\n";
        assert_eq!(candidate(policy), Some("1:22.1.8-1~deb12u1"));
        assert_eq!(candidate("llvm-22-dev:\n  Installed: (none)\n  Candidate: (none)\n"), None);
        assert_eq!(candidate(""), None);
    }

    #[test]
    fn what_the_distribution_says_is_read() {
        let codename = |text| value(text, "VERSION_CODENAME");
        let release = "ID=ubuntu\nVERSION_CODENAME=noble\nUBUNTU_CODENAME=noble\n";
        assert_eq!(codename(release).as_deref(), Some("noble"));
        assert_eq!(value(release, "ID").as_deref(), Some("ubuntu"));
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=\"bookworm\"").as_deref(), Some("bookworm"));
        assert_eq!(codename("ID=arch\n"), None);
    }

    #[test]
    fn the_repository_is_signed_by_its_own_key() {
        let lines: Vec<String> =
            llvm_repository("noble", "fetch").iter().map(|(_, command)| shell_line(command)).collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[2].contains("signed-by=/etc/apt/keyrings/apt.llvm.org.asc"), "{}", lines[2]);
        assert!(
            lines[2].contains("https://apt.llvm.org/noble/ llvm-toolchain-noble-22 main"),
            "{}",
            lines[2]
        );
    }

    #[test]
    fn a_user_without_rights_reads_the_exact_commands() {
        let text = refusal(&["g++", "libzstd-dev"], "  a C++20 compiler\n", "tilefuse-setup");
        assert!(text.contains("a C++20 compiler") && text.ends_with("`tilefuse-setup` again."), "{text}");
        let line = "\n  sudo apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends g++ libzstd-dev\n";
        assert!(text.contains(line), "{text}");
    }
}
