// Does nothing. The tests start it where any program will do.

int main(void) {
    return 0;
}
