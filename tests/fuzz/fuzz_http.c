/* fuzz_http.c - the request reader on any bytes, whole and cut, must agree with itself. */
#include "api/http.h"

#include <assert.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BODY_MAX 4096

/* Reads the first request of the input in pieces of step bytes. */
static size_t read_request(tr_http_request *r, const char *bytes, size_t size, size_t step)
{
    size_t used = 0;
    tr_http_init(r, BODY_MAX);
    while (used < size && r->phase != TR_HTTP_DONE && r->phase != TR_HTTP_FAILED) {
        size_t piece = size - used < step ? size - used : step;
        used += tr_http_feed(r, bytes + used, piece);
    }
    return used;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static tr_http_request whole, cut;
    size_t step = 1 + (size > 0 ? data[size - 1] % 7 : 0);
    size_t used = read_request(&whole, (const char *)data, size, size + 1);
    size_t used_cut = read_request(&cut, (const char *)data, size, step);

    assert(whole.phase == cut.phase);
    assert(whole.status == cut.status);
    if (whole.phase == TR_HTTP_DONE) {
        assert(used == used_cut);
        assert(whole.path[0] == '/');
        assert(strcmp(whole.path, cut.path) == 0);
        assert(whole.body_size <= BODY_MAX);
        assert(whole.body_size == cut.body_size);
        assert(whole.body_size == 0 || memcmp(whole.body, cut.body, whole.body_size) == 0);
    }
    tr_http_teardown(&whole);
    tr_http_teardown(&cut);
    return 0;
}
