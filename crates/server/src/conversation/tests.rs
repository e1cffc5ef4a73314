//! Conversations against templates: what is refused, and what reaches the model.

use muser_text::ChatTemplates;
use muser_weights::gguf::ModelFiles;
use serde_json::json;

use super::*;

static SHIPPED: &[u8] = include_bytes!("../../../../models/glimmer-mini/glimmer-mini-Q4_K_M.gguf");

/// A template without tools or reasoning.
const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";

/// One that reads calls, reasoning, an effort and a field of its own.
const TOOLS: &str = "{% if reasoning_effort is defined %}[{{ reasoning_effort }}]{% endif %}\
    {% for m in messages %}<{{ m.role }}>{{ m.reasoning_content }}{{ m.content }}{{ m['mood'] }}\
    {% for c in m.tool_calls %}({{ c.function.name }}){% endfor %}{% endfor %}";

/// The text that a template makes of a request, or the message of the refusal.
fn text_of(template: &str, body: Value) -> Result<String, String> {
    let files = ModelFiles::from_bytes(SHIPPED.to_vec()).unwrap();
    let words = Words {
        templates: Ok(ChatTemplates::new(Some(template), []).unwrap()),
        ..Words::load(&files.metadata(), 4096).unwrap()
    };
    let told = |error: ApiError| error.body()["error"]["message"].as_str().unwrap().to_owned();
    let body = body.to_string();
    let mut fields = Fields::parse(body.as_bytes()).map_err(told)?;
    let conversation = Conversation::take(&mut fields).map_err(told)?;
    fields.finish().map_err(told)?;
    conversation.render(&words).map(|rendered| rendered.text().to_owned()).map_err(told)
}

/// The same for messages alone.
fn said(template: &str, messages: Value) -> Result<String, String> {
    text_of(template, json!({"messages": messages}))
}

#[track_caller]
fn assert_refused(template: &str, messages: Value, start: &str) {
    let refused = said(template, messages.clone()).expect_err("a refusal");
    assert!(refused.starts_with(start), "{messages}: {refused}");
}

fn history(name: &str) -> Value {
    let call = json!({"id": "call_1", "type": "function", "function": {"name": name, "arguments": "{}"}});
    json!([{"role": "user", "content": "Go."}, {"role": "assistant", "content": null, "tool_calls": [call]},
           {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}])
}

#[test]
fn a_call_that_the_template_leaves_out_is_refused_and_not_forgotten() {
    let lost = "messages[1].tool_calls: the model's chat template has no tool calls";
    assert_refused(PLAIN, history("get_weather"), lost);
    let told = said(TOOLS, history("get_weather"));
    assert_eq!(told.as_deref(), Ok("<user>Go.<assistant>(get_weather)<tool>sunny"));
    // A template that only looks whether there are calls.
    let looks = "{% for m in messages %}{% if m.tool_calls %}called{% endif %}{{ m.content }}{% endfor %}";
    assert_refused(looks, history("get_weather"), lost);
    let mut none = history("get_weather");
    (none[1]["tool_calls"], none[2]) = (json!([]), json!({"role": "user", "content": "And?"}));
    assert_eq!(said(PLAIN, none).as_deref(), Ok("<user>Go.<assistant><user>And?"));
}

#[test]
fn an_answer_to_no_call_and_calls_of_others_are_refused() {
    let place = "messages[2].tool_call_id: no message before it has a call with the id \"call_2\"";
    let mut other = history("f");
    other[2]["tool_call_id"] = "call_2".into();
    assert_refused(TOOLS, other, place);
    let early = json!([{"role": "tool", "content": "sunny", "tool_call_id": "call_1"}, history("f")[1]]);
    assert_refused(TOOLS, early, "messages[0].tool_call_id: no message before");
    let user = json!([{"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f"}}]}]);
    assert_refused(TOOLS, user, "messages[0].tool_calls: only the assistant");
    let user = json!([{"role": "user", "content": "a", "tool_call_id": "x"}]);
    assert_refused(TOOLS, user, "messages[0].tool_call_id: only messages of the role tool");
    for calls in [json!("f"), json!([{}]), json!([{"function": {"name": 1}}])] {
        let message = json!([{"role": "assistant", "content": "", "tool_calls": calls}]);
        assert_refused(TOOLS, message, "messages[0].tool_calls");
    }
}

#[test]
fn roles_are_those_of_the_api_and_developer_is_system() {
    for role in ["banana", "System", "", "model", "function"] {
        let start = format!("messages[0].role: {role:?} is none of system, developer, user, assistant, tool");
        assert_refused(PLAIN, json!([{"role": role, "content": "a"}]), &start);
    }
    let roles = json!([{"role": "developer", "content": "a"}, {"role": "system", "content": "b"}]);
    assert_eq!(said(PLAIN, roles).as_deref(), Ok("<system>a<system>b"));
}

#[test]
fn a_field_of_a_message_is_known_or_read_by_the_template_or_refused() {
    let with = |name: &str, value: Value| {
        let mut message = json!({"role": "user", "content": "a"});
        message[name] = value;
        json!([message])
    };
    assert_refused(PLAIN, with("zzz", json!(1)), "messages[0]: there is no field \"zzz\"");
    assert_refused(PLAIN, with("mood", json!("glad")), "messages[0]: there is no field \"mood\"");
    assert_eq!(said(TOOLS, with("mood", json!("glad"))).as_deref(), Ok("<user>aglad"));
    assert_eq!(said(PLAIN, with("zzz", json!(null))).as_deref(), Ok("<user>a"));
    for (name, value) in [("name", json!("bob")), ("reasoning_content", json!("hm")), ("annotations", json!([]))] {
        assert_eq!(said(PLAIN, with(name, value)).as_deref(), Ok("<user>a"), "{name}");
    }
    assert_eq!(said(TOOLS, with("reasoning_content", json!("hm"))).as_deref(), Ok("<user>hma"));
    let part = |more: Value| {
        let mut part = json!({"type": "text", "text": "a"});
        part.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!([{"role": "user", "content": [part]}])
    };
    assert_refused(PLAIN, part(json!({"zzz": 1})), "messages[0].content[0]: there is no field \"zzz\"");
    let marked = part(json!({"cache_control": {"type": "ephemeral"}, "zzz": null}));
    assert_eq!(said(PLAIN, marked).as_deref(), Ok("<user>a"));
}

#[test]
fn a_refusal_of_the_assistant_is_text() {
    let part = |role: &str| json!([{"role": role, "content": [{"type": "refusal", "refusal": "No."}]}]);
    assert_eq!(said(PLAIN, part("assistant")).as_deref(), Ok("<assistant>No."));
    assert_refused(PLAIN, part("user"), "messages[0].content[0]: parts of type \"refusal\"");
    let field = json!([{"role": "assistant", "content": null, "refusal": "No."}]);
    assert_eq!(said(PLAIN, field).as_deref(), Ok("<assistant>No."));
    let both = json!([{"role": "assistant", "content": "Well.", "refusal": "No."}]);
    assert_eq!(said(PLAIN, both).as_deref(), Ok("<assistant>Well.\nNo."));
    assert_refused(PLAIN, json!([{"role": "user", "content": "a", "refusal": "No."}]), "messages[0].refusal: needs");
}

#[test]
fn variables_cannot_take_the_place_of_the_conversation_or_of_functions() {
    let messages = json!([{"role": "user", "content": "a"}]);
    for name in RENDERER_NAMES {
        let body = json!({"messages": messages, "chat_template_kwargs": {name: 7, "fine": 1}});
        let refused = text_of(PLAIN, body).expect_err("a refusal");
        assert!(refused.starts_with(&format!("chat_template_kwargs.{name}: ")), "{refused}");
    }
    let body = json!({"messages": messages, "chat_template_kwargs": {"greeting": "hi "}});
    assert_eq!(text_of("{{ greeting }}{{ messages[0].content }}", body).as_deref(), Ok("hi a"));
}

#[test]
fn an_effort_reaches_templates_that_read_it_and_none_of_it_asks_for_nothing() {
    let messages = json!([{"role": "user", "content": "a"}]);
    let with =
        |template: &str, effort: &str| text_of(template, json!({"messages": messages, "reasoning_effort": effort}));
    assert_eq!(with(PLAIN, "none").as_deref(), Ok("<user>a"));
    assert_eq!(with(TOOLS, "low").as_deref(), Ok("[low]<user>a"));
    let refused = with(PLAIN, "low").expect_err("a refusal");
    assert_eq!(refused, "reasoning_effort: the model's chat template does not read it");
    let body =
        json!({"messages": messages, "reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}});
    assert_eq!(text_of(TOOLS, body).as_deref(), Ok("[high]<user>a"));
    assert_eq!(text_of(PLAIN, json!({"messages": messages, "verbosity": "medium"})).as_deref(), Ok("<user>a"));
}
