//! Bounds on requests and their answers. `docs/limits.md` has a row for each field, with the bytes charged for it.
//!
//! A bound on a count or a length keeps a request cheap to refuse; [`crate::memory`] bounds what all requests hold at once.
//! What depends on the model (vocabulary, context) or on a flag is checked where those are known.

/// Fields of a body, and of an object whose fields are ignored.
pub const FIELDS_MAX: usize = 256;
/// Names of one object within a field.
pub const NAMES_MAX: usize = 16 << 10;

/// Bytes of all texts of a field: a prompt, a content, a conversation. A prompt is bounded by the context as well.
pub const TEXT_BYTES_MAX: usize = 4 << 20;
/// Messages of a conversation.
pub const MESSAGES_MAX: usize = 16 << 10;
/// Values within all messages, those of templates' own fields included.
pub const MESSAGE_VALUES_MAX: usize = 256 << 10;
/// Values within `chat_template_kwargs`.
pub const TEMPLATE_VALUES_MAX: usize = 32 << 10;
/// Bytes of the texts within `chat_template_kwargs`.
pub const TEMPLATE_TEXT_BYTES_MAX: usize = 1 << 20;
/// Token ids of `POST /detokenize`.
pub const DETOKENIZED_MAX: usize = 1 << 20;

/// Stop strings of a request.
pub const STOPS_MAX: usize = 64;
/// Bytes of one stop string.
pub const STOP_BYTES_MAX: usize = 1 << 10;
/// Paths of `response_fields`.
pub const RESPONSE_FIELDS_MAX: usize = 64;
/// Bytes of all texts of `response_fields`, and of names in other short lists.
pub const SHORT_TEXT_BYTES_MAX: usize = 8 << 10;
/// Bytes of one text in `logit_bias`, whose tokens all get the bias.
pub const BIAS_TEXT_BYTES_MAX: usize = 1 << 10;
/// Bytes of all texts in `logit_bias`.
pub const BIAS_TEXTS_BYTES_MAX: usize = 1 << 20;

/// `top_logprobs` of a conversation, as OpenAI has it.
pub const TOP_LOGPROBS_MAX: u32 = 20;
/// `logprobs` of a text completion, as OpenAI has it.
pub const TEXT_LOGPROBS_MAX: u32 = 5;
/// llama.cpp's `n_probs`.
pub const N_PROBS_MAX: u32 = 100;

/// Bytes that the answers to one request may be expected to take while they are kept.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Bytes charged for a probability in an answer that is kept until it is whole: as it is held, and as it is written.
pub const WHOLE_PROBABILITY_BYTES: usize = 160;
/// Bytes charged for a probability in a stream, which is held until the client takes it.
pub const STREAMED_PROBABILITY_BYTES: usize = 16;
/// Bytes charged for a token of a prompt, for each answer to it: its id in the engine, and its text in the answer.
pub const PROMPT_TOKEN_BYTES: usize = 16;
/// Bytes charged for each byte of a body: the body, and what it becomes while it is read.
pub const BODY_CHARGE: usize = 4;

/// Bytes charged for each byte of a text for `POST /tokenize`: what merging takes where a text is one word, and its ids.
pub const TOKENIZED_CHARGE: usize = 40;

/// Size limits of a JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Values: scalars, arrays and objects, the outermost included.
    pub values: usize,
    /// Bytes of all texts and names.
    pub text_bytes: usize,
}

impl Bounds {
    /// Of a number, a switch, or a short list.
    pub const SHORT: Self = Self { values: 65, text_bytes: SHORT_TEXT_BYTES_MAX };
    /// Of one text.
    pub const TEXT: Self = Self { values: 64, text_bytes: TEXT_BYTES_MAX };
    /// Of `stop`.
    pub const STOPS: Self = Self { values: STOPS_MAX + 1, text_bytes: STOPS_MAX * STOP_BYTES_MAX };
    /// Of `response_fields`.
    pub const RESPONSE_FIELDS: Self = Self { values: RESPONSE_FIELDS_MAX + 1, text_bytes: SHORT_TEXT_BYTES_MAX };
    /// Of `messages`.
    pub const MESSAGES: Self = Self { values: MESSAGE_VALUES_MAX, text_bytes: TEXT_BYTES_MAX };
    /// Of `chat_template_kwargs`.
    pub const TEMPLATE_VARIABLES: Self = Self { values: TEMPLATE_VALUES_MAX, text_bytes: TEMPLATE_TEXT_BYTES_MAX };
}
