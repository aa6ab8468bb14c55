use model::*;
use std::path::Path;
fn main() {
    let dir = std::env::args().nth(1).unwrap();
    let mut files: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).filter(|p| p.to_string_lossy().ends_with(".gguf.inp")).collect();
    files.sort();
    for inp in files {
        let g = inp.with_extension("");
        let name = g.file_name().unwrap().to_string_lossy().into_owned();
        let gguf = match gguf::Gguf::open(&g) { Ok(g) => g, Err(e) => { println!("{name}: OPEN {e}"); continue } };
        let tok = match Tokenizer::from_gguf(&gguf) { Ok(t) => t, Err(e) => { println!("{name}: {}", e.to_string().chars().take(200).collect::<String>()); continue } };
        let text = std::fs::read_to_string(&inp).unwrap();
        let outs = std::fs::read_to_string(Path::new(&inp.to_string_lossy().replace(".inp", ".out"))).unwrap();
        let ins: Vec<&str> = text.split("\n__ggml_vocab_test__\n").collect();
        let outs: Vec<Vec<u32>> = outs.lines().map(|l| l.split_whitespace().map(|x| x.parse().unwrap()).collect()).collect();
        let mut bad = 0;
        for (i, o) in ins.iter().zip(&outs) {
            let got = tok.encode(i, EncodeOptions::RAW).unwrap();
            if &got != o { bad += 1; if bad < 3 { println!("  {i:?}\n   got {got:?}\n  want {o:?}"); } }
        }
        println!("{name}: {} of {} bad; {} in {} out; eos {:?} bos {:?}", bad, outs.len(), ins.len(), outs.len(), tok.eos().iter().map(|&e| String::from_utf8_lossy(tok.token_bytes(e)).into_owned()).collect::<Vec<_>>(), tok.bos());
    }
}
