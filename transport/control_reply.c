/* control_reply.c - the bytes of an answer become a map. */
#include "transport/control.h"

void tr_control_reply_init(tr_control_reply *reply)
{
    msgpack_unpacked_init(&reply->unpacked);
    reply->map = NULL;
}

void tr_control_reply_free(tr_control_reply *reply)
{
    msgpack_unpacked_destroy(&reply->unpacked);
    reply->map = NULL;
}

/* Decoded texts and bytes point into the bytes, so they live as long as *out. */
static tr_status reply_decode(tr_control_reply *out, const char *from, const void *bytes,
                              size_t size, void (*release)(void *), void *owner, tr_error *err)
{
    tr_error inner = {0};

    if (tr_msgpack_check(bytes, size, &inner) != TR_OK) {
        release(owner);
        return tr_fail(err, TR_E_INVALID, "%s: bad answer: %.150s", from, inner.text);
    }
    msgpack_unpack_return result = msgpack_unpack_next(&out->unpacked, bytes, size, NULL);
    /* No zone: the answer holds nothing that could point into the bytes. */
    if (result != MSGPACK_UNPACK_SUCCESS || out->unpacked.zone == NULL ||
        !msgpack_zone_push_finalizer(out->unpacked.zone, release, owner)) {
        release(owner);
        return tr_fail(err, TR_E_INVALID, "%s: bad answer: not a map", from);
    }
    return TR_OK;
}

tr_status tr_control_reply_read(tr_control_reply *out, const char *from, const void *bytes,
                                size_t size, void (*release)(void *), void *owner, tr_error *err)
{
    char text[sizeof(err->text)];
    bool ok = false, full = false;

    tr_status status = reply_decode(out, from, bytes, size, release, owner, err);
    if (status != TR_OK)
        return status;
    if (!tr_map_bool(&out->unpacked.data, "ok", &ok))
        return tr_fail(err, TR_E_INVALID, "%s: bad answer: ok is missing", from);
    if (!ok && !tr_map_text(&out->unpacked.data, "error", text, sizeof(text)))
        return tr_fail(err, TR_E_INVALID, "%s: bad answer: error is missing", from);
    (void)tr_map_bool(&out->unpacked.data, "full", &full); /* absent: it is not that */
    if (!ok)
        return tr_fail(err, full ? TR_E_NOMEM : TR_E_INVALID, "%s", text);
    out->map = &out->unpacked.data;
    return TR_OK;
}
