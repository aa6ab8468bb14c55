//! The contract sections of `kernels/<operation>/README.md` are generated from the declarations.
//!
//! `KERNEL_READMES=write cargo test -p kernels --test readmes` writes them anew; without it they are compared.

use kernels::contract::{contract, examples};
use std::path::PathBuf;

const BEGIN: &str = "<!-- contract: generated from crates/kernels, see tests/readmes.rs -->\n";
const END: &str = "<!-- contract: end -->\n";

#[test]
fn contract_sections_are_up_to_date() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
    let write = std::env::var("KERNEL_READMES").is_ok_and(|v| v == "write");
    for operation in examples() {
        let contract = contract(&operation);
        let path = root.join(contract.kind).join("README.md");
        let section = format!("{BEGIN}{contract}{END}");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let current = text.find(BEGIN).zip(text.find(END)).map(|(begin, end)| begin..end + END.len());
        if write {
            let text = match current {
                Some(range) => format!("{}{section}{}", &text[..range.start], &text[range.end..]),
                None => format!("# {}\n\n## Contract\n\n{section}{text}", contract.kind),
            };
            std::fs::create_dir_all(root.join(contract.kind)).unwrap();
            std::fs::write(&path, text).unwrap();
        } else {
            let found = current.map(|range| &text[range]);
            assert_eq!(found, Some(section.as_str()), "{}: run with KERNEL_READMES=write", path.display());
        }
    }
}
