//! `cargo xtask benchmarks`: the tables of `docs/benchmarks.md` and `README.md`, and the picture, from `benches/results`.
//!
//! A page is written by hand but for what lies between `<!-- generated: NAME -->` and `<!-- end -->`. Which rows are shown
//! is said by [`tables`]; of rows that were measured more than once, the newest is taken.

mod picture;
mod predictions;
mod render;
mod results;
mod tables;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use results::Results;

/// The pages that have generated sections.
const PAGES: [&str; 2] = ["README.md", "docs/benchmarks.md"];

/// The picture of the README.
const PICTURE: &str = "docs/speedup.svg";

/// Writes the generated sections and the picture; with `check`, fails instead where one of them is not up to date.
pub(crate) fn benchmarks(root: &Path, check: bool) -> Result<()> {
    let mut stale = Vec::new();
    for (file, text) in files(root)? {
        let path = root.join(file);
        if std::fs::read_to_string(&path).is_ok_and(|old| old == text) {
            continue;
        }
        if check {
            stale.push(file);
        } else {
            std::fs::write(&path, text).with_context(|| format!("cannot write {file}"))?;
            println!("wrote {file}");
        }
    }
    ensure!(stale.is_empty(), "`cargo xtask benchmarks` writes other text into {}", stale.join(", "));
    Ok(())
}

/// Every file with generated text, as it should be.
fn files(root: &Path) -> Result<Vec<(&'static str, String)>> {
    let results = Results::read(&root.join("benches/results"))?;
    let sections = render::sections(&results)?;
    let mut files = vec![(PICTURE, picture::picture(&results)?)];
    let mut used = Vec::new();
    for page in PAGES {
        let text = std::fs::read_to_string(root.join(page)).with_context(|| format!("cannot read {page}"))?;
        let filled = fill(&text, &sections, &mut used).with_context(|| String::from(page))?;
        files.push((page, filled));
    }
    let unused = sections.keys().find(|name| !used.contains(*name));
    ensure!(unused.is_none(), "no page has a section `{}`", unused.map_or("", String::as_str));
    Ok(files)
}

/// Puts each generated section between its markers, and adds its name to `used`.
fn fill(text: &str, sections: &BTreeMap<String, String>, used: &mut Vec<String>) -> Result<String> {
    let (mut filled, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("<!-- generated: ") {
        let Some((name, body)) = after.split_once(" -->\n") else { bail!("a marker has no end of its line") };
        let section =
            sections.get(name).with_context(|| format!("there is no generated section `{name}`"))?;
        let Some((_, behind)) = body.split_once("<!-- end -->") else { bail!("section `{name}` has no end") };
        filled += &format!("{before}<!-- generated: {name} -->\n{section}<!-- end -->");
        used.push(name.to_owned());
        rest = behind;
    }
    Ok(filled + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_are_what_the_generator_writes() {
        benchmarks(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")), true).unwrap();
    }

    #[test]
    fn only_what_lies_between_markers_is_written() {
        let sections = BTreeMap::from([("a".to_owned(), "| 1 |\n".to_owned())]);
        let fill = |text: &str| fill(text, &sections, &mut Vec::new()).map_err(|e| e.to_string());
        assert_eq!(
            fill("x\n<!-- generated: a -->\nold\n<!-- end -->\ny\n").unwrap(),
            "x\n<!-- generated: a -->\n| 1 |\n<!-- end -->\ny\n"
        );
        assert!(fill("<!-- generated: b -->\n<!-- end -->").unwrap_err().contains("`b`"));
        assert!(fill("<!-- generated: a -->\n").unwrap_err().contains("no end"));
    }
}
