/*
 * The order of families in selection.
 */
#include "support.h"

#include "select/order.h"

/* Counts the places that a family has on every device. */
static int places_of(const family_t *family) {
    int places = 0;
    for (int32_t i = 0; i < family_order_count; i++)
        if (family_order[i].family == family && family_order[i].applies == NULL)
            places++;
    return places;
}

TEST(every_family_has_a_place) {
    for (int32_t i = 0; i < family_list_count; i++)
        if (places_of(family_list[i]) != 1)
            fail_msg("%s has %d places on every device: not one", family_list[i]->facts->name,
                     places_of(family_list[i]));
}
