module goroutines

go 1.22
