/* test_hidden.c - which rows of the residual are shown, and to whom. */
#include "actors/hidden.h"
#include "tests/actors/fake_env.h"

#define WIDTH  3
#define CLIENT tr_node_actor(TR_ACTOR_CLIENT, 3)

/* Rows 0..5 of a step: row r is r, r + 0.25, r + 0.5. */
static const float rows[6 * WIDTH] = {0, 0.25f, 0.5f, 1, 1.25f, 1.5f, 2, 2.25f, 2.5f,
                                      3, 3.25f, 3.5f, 4, 4.25f, 4.5f, 5, 5.25f, 5.5f};

static tr_output output(uint64_t request, uint32_t row, uint32_t position, uint32_t flags)
{
    return (tr_output){
        .request = request, .row = row, .position = position, .flags = flags, .client = CLIENT};
}

static tr_hidden_rows head_of(const tr_msg *msg)
{
    tr_hidden_rows head;
    assert_int_equal(msg->header.kind, TR_MSG_HIDDEN_ROWS);
    assert_true(msg->header.target == CLIENT);
    memcpy(&head, msg->payload->data, sizeof(head));
    assert_int_equal(msg->header.payload_size,
                     sizeof(head) + head.rows_count * WIDTH * sizeof(float));
    return head;
}

static void neighbouring_positions_of_a_request_go_together(void **state)
{
    fake f;
    (void)state;
    fake_open(&f, tr_node_actor(TR_ACTOR_ROUTER, 0));
    const tr_output outputs[] = {
        output(7, 0, 64, TR_OUTPUT_SAMPLE), /* does not ask */
        output(8, 1, 10, TR_OUTPUT_HIDDEN), output(8, 2, 11, TR_OUTPUT_HIDDEN),
        output(9, 4, 12, TR_OUTPUT_HIDDEN), /* another request */
        output(9, 5, 20, TR_OUTPUT_HIDDEN), /* a gap */
    };
    assert_int_equal(tr_hidden_send(&f.env, 5, outputs, 5, 2, rows, WIDTH, false, 1024), TR_OK);
    assert_int_equal(f.sent_count, 3);
    tr_hidden_rows head = head_of(&f.sent[0]);
    assert_int_equal(head.request, 8);
    assert_int_equal(head.position, 10);
    assert_int_equal(head.rows_count, 2);
    assert_int_equal(head.layer, 2);
    assert_int_equal(head.width, WIDTH);
    assert_memory_equal(f.sent[0].payload->data + sizeof(head), rows + WIDTH, 2 * WIDTH * 4);
    assert_int_equal(head_of(&f.sent[1]).position, 12);
    assert_int_equal(head_of(&f.sent[2]).position, 20);
    assert_memory_equal(f.sent[2].payload->data + sizeof(head), rows + 5 * WIDTH, WIDTH * 4);
    fake_clear(&f);
    fake_close(&f);
}

static void packed_rows_are_taken_by_their_output(void **state)
{
    fake f;
    (void)state;
    fake_open(&f, tr_node_actor(TR_ACTOR_SAMPLER, 0));
    const tr_output outputs[] = {output(7, 9, 64, 0), output(8, 30, 10, TR_OUTPUT_HIDDEN)};
    assert_int_equal(tr_hidden_send(&f.env, 5, outputs, 2, 2, rows, WIDTH, true, 1024), TR_OK);
    assert_int_equal(f.sent_count, 1);
    assert_memory_equal(f.sent[0].payload->data + sizeof(tr_hidden_rows), rows + WIDTH, WIDTH * 4);
    fake_clear(&f);
    fake_close(&f);
}

static void what_does_not_fit_a_buffer_goes_in_pieces(void **state)
{
    const uint32_t room = sizeof(tr_hidden_rows) + 2 * WIDTH * sizeof(float) + 1;
    tr_output outputs[5];
    fake f;
    (void)state;
    fake_open(&f, tr_node_actor(TR_ACTOR_ROUTER, 0));
    for (uint32_t i = 0; i < 5; i++)
        outputs[i] = output(8, i, 10 + i, TR_OUTPUT_HIDDEN);
    assert_int_equal(tr_hidden_send(&f.env, 5, outputs, 5, 2, rows, WIDTH, false, room), TR_OK);
    assert_int_equal(f.sent_count, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(head_of(&f.sent[i]).position, 10 + 2 * i);
        assert_int_equal(head_of(&f.sent[i]).rows_count, i < 2 ? 2 : 1);
    }
    fake_clear(&f);
    fake_close(&f);
}

static void nobody_asks_and_nothing_is_sent_or_taken(void **state)
{
    fake f;
    (void)state;
    fake_open(&f, tr_node_actor(TR_ACTOR_ROUTER, 0));
    tr_output o = output(7, 0, 64, TR_OUTPUT_SAMPLE);
    f.pool_empty = true;
    assert_int_equal(tr_hidden_send(&f.env, 5, &o, 1, 0, rows, WIDTH, false, 1024), TR_OK);
    o.flags = TR_OUTPUT_HIDDEN;
    assert_int_equal(tr_hidden_send(&f.env, 5, &o, 1, 0, rows, WIDTH, false, 1024), TR_E_NOMEM);
    assert_int_equal(f.sent_count, 0);
    fake_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbouring_positions_of_a_request_go_together),
        cmocka_unit_test(packed_rows_are_taken_by_their_output),
        cmocka_unit_test(what_does_not_fit_a_buffer_goes_in_pieces),
        cmocka_unit_test(nobody_asks_and_nothing_is_sent_or_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
