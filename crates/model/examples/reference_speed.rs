//! How long the f32 reference takes: `cargo run --release -p model --example reference_speed [MODEL]`.

use model::reference::{Divergence, Reference};
use model::{EncodeOptions, Model, resolve};
use std::time::Instant;

fn main() -> model::Result<()> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "smollm2-135m".into());
    let start = Instant::now();
    let model = Model::open(&resolve(&name)?)?;
    println!("open          {:8.3} s", start.elapsed().as_secs_f64());
    let start = Instant::now();
    let reference = Reference::new(&model)?;
    println!("dequantise    {:8.3} s", start.elapsed().as_secs_f64());
    let prompt = model.tokenizer().encode("The capital of France is", EncodeOptions::TEXT)?;
    let start = Instant::now();
    let tokens = reference.generate_greedy(&prompt, 16)?;
    println!("{} greedy tokens {:5.3} s", tokens.len(), start.elapsed().as_secs_f64());
    let vocab = model.config().vocab;
    let text: Vec<u32> = (0..2_048).map(|i| (i * 7_919 + 13) % vocab as u32).collect();
    let windows: Vec<&[u32]> = text.chunks(256).collect();
    let start = Instant::now();
    let hidden = reference.hidden_states(&windows)?;
    println!("2048 tokens   {:8.3} s  hidden states, windows of 256", start.elapsed().as_secs_f64());
    let start = Instant::now();
    reference.each_logits(&hidden, 64, |_, _| {});
    println!("2048 tokens   {:8.3} s  logits", start.elapsed().as_secs_f64());
    let start = Instant::now();
    let mut divergence = Divergence::new();
    let mut result = Ok(());
    reference.each_logits(&hidden, 64, |_, rows| {
        if result.is_ok() {
            result = divergence.push_rows(rows, rows, vocab, &vec![None; rows.len() / vocab]);
        }
    });
    result?;
    println!("2048 tokens   {:8.3} s  logits and divergence", start.elapsed().as_secs_f64());
    Ok(())
}
