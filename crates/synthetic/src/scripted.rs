//! Model that continues prompts with scripted tokens: a test of token handling can then choose the tokens, without any
//! hook in the program under test.
//!
//! It is a complete `llama` file. Every projection of its one layer is zero, so what reaches the head is the embedding of
//! the last token, and the next token depends on that one alone. Embeddings are rows of a Walsh matrix, `±1` and exactly
//! orthogonal; the head's row of a token is the sum of the embeddings of those tokens that it follows, scaled. The logit of
//! the token that follows is then [`LOGIT`] and every other one is zero but for rounding, so that no temperature, seed or
//! cut of the candidates below a few times the usual ones makes another token likely.
//!
//! The vocabulary is byte-level BPE without merges:
//!
//! | ids | tokens |
//! |-----|--------|
//! | 0 | [`END_OF_TEXT`], a control token |
//! | 1 to 256 | the bytes, in GPT-2's order ([`byte_token`]); text becomes these |
//! | 257, 258 | `<|im_start|>` and `<|im_end|>`, control tokens of the file's ChatML template |
//! | from 259 ([`FIRST_SCRIPT_TOKEN`]) | the tokens of the scripts, in order, each place with an id of its own |
//!
//! Two tokens may be spelled alike; text becomes the one with the lower id, so a script may repeat itself, and may cut
//! characters anywhere.

use std::io::{self, Write};

use crate::small::{Architecture, LlamaOptions, ModelSpec, byte_character, byte_characters};
use muser_kernels::formats::WeightType;
use muser_weights::gguf::{GgufWriter, Value, WriteError};

/// The token that ends a text.
pub const END_OF_TEXT: u32 = 0;
/// The first token of the first script.
pub const FIRST_SCRIPT_TOKEN: u32 = 259;
/// The logit of the token that follows; those of all others are zero.
pub const LOGIT: f32 = 64.0;
/// Tokens of the vocabulary at most: a matrix has a square of this many weights.
const TOKENS_MAX: usize = 2048;
const CONTROLS: [&str; 2] = ["<|im_start|>", "<|im_end|>"];
/// GGUF's token types.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;
const CHAT_TEMPLATE: &str = "{% for m in messages %}\
     {{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}\
     {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Continuation of prompts that end in a certain byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script<'a> {
    /// The last byte of those prompts. The file's chat template ends in a line break.
    pub trigger: u8,
    /// Tokens of the continuation, each as its bytes, which need not be whole characters.
    pub tokens: &'a [&'a [u8]],
    /// Continuation after the last of them.
    pub then: Then,
}

/// Continuation after the last token of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The end of the text.
    End,
    /// The first token of the script.
    Again,
}

/// Reasons for which there is no such model. Always the fault of the scripts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptError {
    /// Only one token can follow a byte.
    #[error("byte {trigger:#04x} triggers two scripts")]
    TriggeredTwice {
        /// The byte.
        trigger: u8,
    },
    /// A script without tokens has no place to go back to, and a token without bytes is none.
    #[error("the script of byte {trigger:#04x} has no tokens, or one without bytes")]
    Empty {
        /// The script's trigger.
        trigger: u8,
    },
    /// The scripts are longer than the vocabulary may be.
    #[error("the scripts need {tokens} tokens, at most {max} fit")]
    TooLong {
        /// Tokens of the vocabulary that would be needed.
        tokens: usize,
        /// Most that there may be.
        max: usize,
    },
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// A whole model as the bytes of a GGUF file, with a context of `context` tokens. What follows a token that no script says
/// anything about is not defined.
///
/// # Errors
/// [`ScriptError`] if the scripts contradict each other or do not fit.
pub fn scripted(scripts: &[Script], context: u32) -> Result<Vec<u8>, ScriptError> {
    let vocabulary = Vocabulary::of(scripts)?;
    let mut writer = GgufWriter::new();
    vocabulary.spec(context).set_keys(&mut writer)?;
    vocabulary.set_keys(&mut writer)?;
    let (width, ffn) = (u64::from(vocabulary.width), u64::from(FFN));
    let tensors: [(&str, WeightType, &[u64]); 12] = [
        ("token_embd.weight", WeightType::F16, &[width, width]),
        ("output_norm.weight", WeightType::F32, &[width]),
        ("output.weight", WeightType::F16, &[width, width]),
        ("blk.0.attn_norm.weight", WeightType::F32, &[width]),
        ("blk.0.attn_q.weight", WeightType::F16, &[width, HEAD_DIM.into()]),
        ("blk.0.attn_k.weight", WeightType::F16, &[width, HEAD_DIM.into()]),
        ("blk.0.attn_v.weight", WeightType::F16, &[width, HEAD_DIM.into()]),
        ("blk.0.attn_output.weight", WeightType::F16, &[HEAD_DIM.into(), width]),
        ("blk.0.ffn_norm.weight", WeightType::F32, &[width]),
        ("blk.0.ffn_gate.weight", WeightType::F16, &[width, ffn]),
        ("blk.0.ffn_up.weight", WeightType::F16, &[width, ffn]),
        ("blk.0.ffn_down.weight", WeightType::F16, &[ffn, width]),
    ];
    for (name, ty, shape) in tensors {
        writer.tensor(name, ty, shape)?;
    }
    let mut bytes = Vec::new();
    writer.write(&mut bytes, |tensor, out| match tensor.name() {
        "token_embd.weight" => vocabulary.write_embeddings(out),
        "output.weight" => vocabulary.write_head(out),
        name if name.ends_with("norm.weight") => (0..width).try_for_each(|_| out.write_all(&1.0f32.to_le_bytes())),
        // Zeros are zeros in any type of float.
        _ => (0..tensor.shape().iter().product()).try_for_each(|_: u64| out.write_all(&[0; 2])),
    })?;
    Ok(bytes)
}

/// The id of the token of one byte.
pub fn byte_token(byte: u8) -> u32 {
    let character = byte_character(byte);
    let place = (1..).zip(byte_characters()).find(|(_, of_byte)| *of_byte == character);
    place.map_or(END_OF_TEXT, |(id, _)| id)
}

const HEAD_DIM: u32 = 64;
const FFN: u32 = 32;

/// The tokens, and which follows which.
struct Vocabulary {
    /// Spellings and types; as many as the model is wide.
    tokens: Vec<(String, i32)>,
    /// Per token, the tokens that it follows.
    follows: Vec<Vec<u32>>,
    /// Tokens of the vocabulary and width of the model: the power of two that holds all tokens.
    width: u32,
}

impl Vocabulary {
    fn of(scripts: &[Script]) -> Result<Self, ScriptError> {
        let needed = FIRST_SCRIPT_TOKEN as usize + scripts.iter().map(|script| script.tokens.len()).sum::<usize>();
        if needed > TOKENS_MAX {
            return Err(ScriptError::TooLong { tokens: needed, max: TOKENS_MAX });
        }
        let mut tokens = vec![("<|endoftext|>".to_owned(), CONTROL)];
        tokens.extend(byte_characters().map(|character| (character.to_string(), NORMAL)));
        tokens.extend(CONTROLS.map(|control| (control.to_owned(), CONTROL)));
        let width = needed.next_power_of_two();
        let mut follows = vec![Vec::new(); width];
        let mut triggers = [false; 256];
        let mut first = FIRST_SCRIPT_TOKEN;
        for &Script { trigger, tokens: said, then } in scripts {
            if std::mem::replace(&mut triggers[usize::from(trigger)], true) {
                return Err(ScriptError::TriggeredTwice { trigger });
            }
            if said.is_empty() || said.iter().any(|token| token.is_empty()) {
                return Err(ScriptError::Empty { trigger });
            }
            let spelled = |bytes: &&[u8]| (bytes.iter().map(|byte| byte_character(*byte)).collect(), NORMAL);
            tokens.extend(said.iter().map(spelled));
            follows[first as usize].push(byte_token(trigger));
            let ids = (first..).take(said.len());
            ids.clone().skip(1).for_each(|id| follows[id as usize].push(id - 1));
            let last = ids.last().unwrap_or(first);
            let after = match then {
                Then::End => END_OF_TEXT,
                Then::Again => first,
            };
            follows[after as usize].push(last);
            first = last + 1;
        }
        tokens.extend((tokens.len()..width).map(|id| (format!("[PAD{id}]"), UNUSED)));
        let width = u32::try_from(width).unwrap_or(u32::MAX);
        Ok(Self { tokens, follows, width })
    }

    fn spec(&self, context: u32) -> ModelSpec {
        ModelSpec {
            architecture: Architecture::Llama(LlamaOptions {
                tied_output: false,
                rope_factors: false,
                qkv_biases: false,
            }),
            layers: 1,
            hidden: self.width,
            query_heads: 1,
            kv_heads: 1,
            head_dim: HEAD_DIM,
            ffn: FFN,
            vocab: self.width,
            context,
            rope_base: 10_000.0,
            seed: 0,
        }
    }

    fn set_keys(&self, writer: &mut GgufWriter) -> Result<(), WriteError> {
        let (tokens, kinds): (Vec<String>, Vec<i32>) = self.tokens.iter().cloned().unzip();
        writer.set("tokenizer.ggml.model", Value::String(b"gpt2"))?;
        writer.set("tokenizer.ggml.pre", Value::String(b"smollm"))?;
        writer.set_array("tokenizer.ggml.tokens", &tokens)?;
        writer.set_array("tokenizer.ggml.token_type", &kinds)?;
        writer.set_array::<String>("tokenizer.ggml.merges", &[])?;
        writer.set("tokenizer.ggml.eos_token_id", Value::U32(END_OF_TEXT))?;
        writer.set("tokenizer.ggml.add_bos_token", Value::Bool(false))?;
        writer.set("tokenizer.chat_template", Value::String(CHAT_TEMPLATE.as_bytes()))
    }

    fn write_embeddings(&self, out: &mut dyn Write) -> io::Result<()> {
        (0..self.width).try_for_each(|token| {
            let row = (0..self.width).map(|column| walsh(token, column));
            write_f16(row, out)
        })
    }

    /// A product of two rows of the Walsh matrix is their width or zero. Sums of a few of its rows, scaled by a power of
    /// two, are exact in F16.
    fn write_head(&self, out: &mut dyn Write) -> io::Result<()> {
        let scale = LOGIT / self.width as f32;
        self.follows.iter().try_for_each(|before| {
            let sum = |column| before.iter().map(|&token| walsh(token, column)).sum::<f32>();
            write_f16((0..self.width).map(|column| scale * sum(column)), out)
        })
    }
}

/// An element of the Walsh matrix of any size that is a power of two.
fn walsh(row: u32, column: u32) -> f32 {
    if (row & column).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 }
}

fn write_f16(row: impl Iterator<Item = f32>, out: &mut dyn Write) -> io::Result<()> {
    let bytes: Vec<u8> = row.flat_map(|value| half::f16::from_f32(value).to_le_bytes()).collect();
    out.write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: Script<'static> = Script { trigger: b'?', tokens: &[b"y", b"es"], then: Then::End };

    #[test]
    fn each_place_of_a_script_follows_the_place_before_it() {
        let again = Script { trigger: b'!', tokens: &[b"a"], then: Then::Again };
        let Vocabulary { tokens, follows, width } = Vocabulary::of(&[SCRIPT, again]).unwrap();
        assert_eq!((tokens.len(), follows.len(), width), (512, 512, 512));
        assert_eq!((tokens[259].0.as_str(), tokens[260].0.as_str(), tokens[261].0.as_str()), ("y", "es", "a"));
        assert_eq!((&follows[259], &follows[260]), (&vec![byte_token(b'?')], &vec![259]));
        assert_eq!((&follows[0], &follows[261]), (&vec![260], &vec![byte_token(b'!'), 261]));
        assert_eq!(follows.iter().map(Vec::len).sum::<usize>(), 5);
    }

    #[test]
    fn rows_of_the_walsh_matrix_are_orthogonal() {
        for (a, b) in [(0, 1), (3, 5), (17, 42), (63, 0), (9, 9)] {
            let product: f32 = (0..64).map(|column| walsh(a, column) * walsh(b, column)).sum();
            assert_eq!(product, if a == b { 64.0 } else { 0.0 }, "{a} {b}");
        }
    }

    #[test]
    fn the_token_of_a_byte_is_spelled_by_its_character() {
        let vocabulary = Vocabulary::of(&[]).unwrap();
        for byte in 0..=u8::MAX {
            assert_eq!(vocabulary.tokens[byte_token(byte) as usize].0, byte_character(byte).to_string());
        }
        assert_eq!((byte_character(b'A'), byte_character(b' '), byte_token(b'!')), ('A', 'Ġ', 1));
    }

    #[test]
    fn scripts_that_cannot_be_followed_are_refused() {
        let refused = |scripts: &[Script]| scripted(scripts, 64).unwrap_err().to_string();
        assert_eq!(refused(&[SCRIPT, SCRIPT]), "byte 0x3f triggers two scripts");
        let empty: &[&[u8]] = &[];
        for tokens in [empty, &[b"a", b""]] {
            let message = refused(&[Script { tokens, ..SCRIPT }]);
            assert_eq!(message, "the script of byte 0x3f has no tokens, or one without bytes");
        }
        let long = vec![b"a" as &[u8]; 1790];
        assert_eq!(refused(&[Script { tokens: &long, ..SCRIPT }]), "the scripts need 2049 tokens, at most 2048 fit");
        assert!(scripted(&[Script { tokens: &long[..1789], ..SCRIPT }], 64).is_ok());
    }
}
