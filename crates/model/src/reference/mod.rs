//! The f32 reference model.
