/*
 * The program's functions have names of hidden ones of the library, and must not meet them.
 */
int status_fail(void);
int config_compare(void);

int status_fail(void) {
    return 1;
}

int config_compare(void) {
    return 2;
}
