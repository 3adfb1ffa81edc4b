/*
 * Functions of the program that are called like hidden ones of the library: they must not meet when
 * both are linked into one file.
 */
int status_fail(void);
int config_compare(void);

int status_fail(void) {
    return 1;
}

int config_compare(void) {
    return 2;
}
