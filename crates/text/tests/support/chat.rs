//! Reads chat goldens, as `golden/chat/make.py` writes them, and checks them.

use muser_text::{ChatError, ChatMessage, ChatOptions, ChatTemplate, LocalTime, Rendered, Tokenizer, VocabularyData};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::error::Error;

/// A conversation, and its rendering by jinja2.
pub struct ChatGolden {
    /// Name of the template.
    pub template: String,
    /// Messages of the conversation.
    pub messages: Vec<ChatMessage>,
    /// Variables besides the messages.
    pub options: ChatOptions,
    /// The text, or that there is none.
    pub text: Option<String>,
}

/// Templates by name, and what is made of them.
pub type ChatGoldens = (BTreeMap<String, String>, Vec<ChatGolden>);

/// The templates and conversations in `json`.
pub fn chat_goldens(json: &str) -> Result<ChatGoldens, Box<dyn Error>> {
    let mut value: Value = serde_json::from_str(json)?;
    let templates = serde_json::from_value::<BTreeMap<String, String>>(value["templates"].take())?;
    let cases = value["cases"].as_array().ok_or("no cases")?;
    let fields =
        |message: &Value| message.as_object().cloned().map(ChatMessage::from_fields).ok_or("a message is no object");
    let golden = |case: &Value| -> Result<ChatGolden, Box<dyn Error>> {
        Ok(ChatGolden {
            template: case["template"].as_str().ok_or("a case without a template")?.to_owned(),
            messages: case["messages"].as_array().ok_or("no messages")?.iter().map(fields).collect::<Result<_, _>>()?,
            options: ChatOptions {
                add_generation_prompt: case["add_generation_prompt"] == true,
                tools: case["tools"].clone(),
                variables: case["variables"].as_object().cloned().unwrap_or_else(Map::new),
                now: Some(LocalTime::from_seconds(1_709_212_829)),
                ..ChatOptions::default()
            },
            text: case["text"].as_str().map(str::to_owned),
        })
    };
    Ok((templates, cases.iter().map(golden).collect::<Result<_, _>>()?))
}

/// A tokenizer with BOS `<s>`, EOS `</s>` and other control tokens that templates write.
pub fn chat_tokenizer(mut data: VocabularyData) -> Tokenizer {
    let controls =
        ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|system|>", "<|user|>", "<|assistant|>", "[INST]", "[/INST]"];
    for control in controls {
        data.tokens.push(control.to_owned());
        data.token_types.get_or_insert_default().push(3);
    }
    (data.bos, data.eos) = (Some(256), Some(257));
    Tokenizer::new(data).expect("a good vocabulary")
}

impl ChatGolden {
    /// Renders the conversation with `template`; an error unless the text is the golden one.
    pub fn render(&self, tokenizer: &Tokenizer, template: &ChatTemplate) -> Result<Option<Rendered>, String> {
        let rendered: Result<Rendered, ChatError> = template.render(tokenizer, &self.messages, &self.options);
        match (&self.text, rendered) {
            (Some(text), Ok(rendered)) if rendered.text() == text => Ok(Some(rendered)),
            (Some(text), Ok(rendered)) => Err(format!("expected {text:?}\n     got {:?}", rendered.text())),
            (Some(text), Err(error)) => Err(format!("expected {text:?}\n     got the error: {error}")),
            (None, Ok(rendered)) => Err(format!("expected an error\n     got {:?}", rendered.text())),
            (None, Err(_)) => Ok(None),
        }
    }
}
