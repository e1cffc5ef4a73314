//! Model files: GGUF reading and writing, memory mapping, tensors and their digest.
