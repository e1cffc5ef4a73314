// Asks libllama for what its own tools do not print: the full logits of every position, and the ids of arbitrary bytes.
// Written in C against llama.h because its parameter structs are passed by value and change between versions: a compiler
// notices, a python binding would read garbage.
//
//   llama-probe logits MODEL IDS OUT.f32 KV(f32|f16|q8_0) FLASH(0|1) THREADS
//     IDS: one prompt a line, ids separated by spaces. OUT: little-endian f32, one row of the vocabulary per position,
//     prompts in file order. No BOS is added; every prompt starts from an empty cache.
//   llama-probe tokenize MODEL PARSE_SPECIAL(0|1)
//     stdin: "LENGTH\n" and LENGTH bytes, repeated (texts may hold newlines and NUL). stdout: one line of ids a text.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llama.h"

static void fail(const char *what) {
    fprintf(stderr, "llama-probe: %s\n", what);
    exit(1);
}

static void warnings_only(enum ggml_log_level level, const char *text, void *data) {
    (void)data;
    if (level == GGML_LOG_LEVEL_ERROR || level == GGML_LOG_LEVEL_WARN) fputs(text, stderr);
}

static struct llama_model *load(const char *path, bool vocab_only) {
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = vocab_only;
    struct llama_model *model = llama_model_load_from_file(path, params);
    if (!model) fail("the model does not load");
    return model;
}

static enum ggml_type kv_type(const char *name) {
    if (!strcmp(name, "f32")) return GGML_TYPE_F32;
    if (!strcmp(name, "f16")) return GGML_TYPE_F16;
    if (!strcmp(name, "q8_0")) return GGML_TYPE_Q8_0;
    fail("KV is f32, f16 or q8_0");
    return GGML_TYPE_F32;
}

static int parse_ids(char *line, llama_token *ids, int room) {
    int n = 0;
    for (char *word = strtok(line, " \r\n"); word; word = strtok(NULL, " \r\n")) {
        if (n == room) fail("a prompt is longer than the context");
        ids[n++] = (llama_token)atoi(word);
    }
    return n;
}

static int logits(int argc, char **argv) {
    enum { context = 2048 };
    if (argc != 8) fail("usage: logits MODEL IDS OUT.f32 KV FLASH THREADS");
    struct llama_model *model = load(argv[2], false);
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = context;
    params.n_ubatch = 512;
    params.type_k = params.type_v = kv_type(argv[5]);
    params.flash_attn_type = atoi(argv[6]) ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.n_threads = params.n_threads_batch = atoi(argv[7]);
    struct llama_context *ctx = llama_init_from_model(model, params);
    if (!ctx) fail("the context does not start");
    size_t vocab = (size_t)llama_vocab_n_tokens(llama_model_get_vocab(model));
    FILE *in = fopen(argv[3], "r"), *out = fopen(argv[4], "wb");
    if (!in || !out) fail("a file does not open");

    llama_token ids[context];
    struct llama_batch batch = llama_batch_init(context, 0, 1);
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, in) > 0) {
        int n = parse_ids(line, ids, context);
        if (!n) continue;
        batch.n_tokens = n;
        for (int i = 0; i < n; i++) {
            batch.token[i] = ids[i];
            batch.pos[i] = i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;
        }
        llama_memory_clear(llama_get_memory(ctx), true);
        if (llama_decode(ctx, batch)) fail("decode failed");
        for (int i = 0; i < n; i++)
            if (fwrite(llama_get_logits_ith(ctx, i), sizeof(float), vocab, out) != vocab) fail("short write");
    }
    if (fclose(out)) fail("short write");
    free(line);
    llama_batch_free(batch);
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}

static int tokenize(int argc, char **argv) {
    if (argc != 4) fail("usage: tokenize MODEL PARSE_SPECIAL");
    struct llama_model *model = load(argv[2], true);
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    int length;
    while (scanf("%d", &length) == 1) {
        char *text = malloc((size_t)length + 1);
        llama_token *ids = malloc(((size_t)length + 8) * sizeof *ids);
        if (getchar() != '\n' || fread(text, 1, (size_t)length, stdin) != (size_t)length) fail("a text is cut short");
        int n = llama_tokenize(vocab, text, length, ids, length + 8, false, atoi(argv[3]) != 0);
        if (n < 0) fail("more ids than bytes");
        for (int i = 0; i < n; i++) printf(i ? " %d" : "%d", ids[i]);
        putchar('\n');
        free(ids);
        free(text);
    }
    llama_model_free(model);
    return 0;
}

int main(int argc, char **argv) {
    llama_log_set(warnings_only, NULL);
    llama_backend_init();
    if (argc > 1 && !strcmp(argv[1], "logits")) return logits(argc, argv);
    if (argc > 1 && !strcmp(argv[1], "tokenize")) return tokenize(argc, argv);
    fail("usage: llama-probe logits|tokenize ...");
}
