//! `wright pull`.

use crate::cli::Pull;
use crate::portable;
use anyhow::Result;

/// Fetches a known model and prints its path.
pub fn run(args: &Pull) -> Result<()> {
    let path = model::pull(&args.name, &portable::model_cache()?)?;
    if args.json {
        println!("{}", serde_json::json!({ "name": args.name, "path": path }));
    } else {
        println!("{}", path.display());
    }
    Ok(())
}
