//! Element formats and GGUF files against the `gguf` Python package's own figures (see `conformance/models/README.md`).

use model::gguf::{Array, Gguf, GgufTensor, Value, export_f32_gguf, write_gguf};
use model::{DataType, dequantise_into};
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/models").join(name)
}

fn weights(gguf: &Gguf, name: &str) -> Vec<f32> {
    let tensor = gguf.tensor(name).unwrap();
    let [rows, cols] = tensor.shape();
    let mut out = vec![0.0; rows * cols];
    dequantise_into(tensor.format, gguf.bytes(tensor), &mut out);
    out
}

#[test]
fn every_format_dequantises_bit_for_bit() {
    let gguf = Gguf::open(&fixture("quants.gguf")).unwrap();
    for format in DataType::ALL.into_iter().filter(|f| *f != DataType::F32) {
        assert_eq!(gguf.tensor(format.name()).unwrap().format, format);
        let got: Vec<u32> = weights(&gguf, format.name()).iter().map(|w| w.to_bits()).collect();
        let expected: Vec<u32> =
            weights(&gguf, &format!("{format}.expected")).iter().map(|w| w.to_bits()).collect();
        assert_eq!(got.len(), 1_024);
        assert_eq!(got, expected, "{format}");
    }
}

#[test]
fn what_is_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.gguf");
    let metadata: Vec<(String, Value)> = [
        ("u8", Value::U8(255)),
        ("i8", Value::I8(-1)),
        ("u16", Value::U16(65_535)),
        ("i16", Value::I16(-2)),
        ("u32", Value::U32(7)),
        ("i32", Value::I32(-3)),
        ("f32", Value::F32(1.5)),
        ("bool", Value::Bool(true)),
        ("string", Value::String("ü▁".into())),
        ("u64", Value::U64(u64::MAX)),
        ("i64", Value::I64(i64::MIN)),
        ("f64", Value::F64(0.1)),
        ("strings", Value::Array(Array::String(vec!["a".into(), String::new()]))),
        ("floats", Value::Array(Array::F32(vec![0.5, -0.5]))),
        ("nested", Value::Array(Array::Array(vec![Array::I32(vec![1, 2]), Array::Bool(vec![false])]))),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    let (matrix, vector) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [7.0, 8.0, 9.0]);
    let tensors = [GgufTensor::f32_matrix("m", 2, 3, &matrix), GgufTensor::f32_vector("v", &vector)];
    write_gguf(&path, &metadata, &tensors).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    assert_eq!(gguf.metadata(), metadata);
    assert_eq!(gguf.tensor("m").unwrap().shape(), [2, 3]);
    assert_eq!(gguf.tensor("v").unwrap().shape(), [3, 1]);
    assert_eq!(weights(&gguf, "m"), matrix);
    assert_eq!(weights(&gguf, "v"), vector);
}

#[test]
fn an_export_holds_the_dequantised_weights() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("f32.gguf");
    export_f32_gguf(&fixture("quants.gguf"), &out).unwrap();
    let (before, after) = (Gguf::open(&fixture("quants.gguf")).unwrap(), Gguf::open(&out).unwrap());
    assert_eq!(after.get("general.architecture"), before.get("general.architecture"));
    assert_eq!(after.tensors().len(), before.tensors().len());
    for tensor in after.tensors() {
        assert_eq!(tensor.format, DataType::F32);
        assert_eq!(tensor.dims, before.tensor(&tensor.name).unwrap().dims);
        assert_eq!(weights(&after, &tensor.name), weights(&before, &tensor.name), "{}", tensor.name);
    }
}

#[test]
fn a_writer_refuses_bytes_that_do_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    let wrong =
        GgufTensor { name: "t".into(), format: DataType::Q4_0, dims: vec![33], data: Box::new(Vec::new) };
    assert!(write_gguf(&path, &[], &[wrong]).is_err());
    let short =
        GgufTensor { name: "t".into(), format: DataType::F32, dims: vec![2], data: Box::new(|| vec![0; 4]) };
    assert!(write_gguf(&path, &[], &[short]).is_err());
    assert!(!path.exists(), "nothing half-written is left");
}
