// Goroutines make system calls with a few hundred bytes of stack left, and their stacks lie among
// other objects. Here many goroutines start programs and use high descriptors. Both kinds of calls
// pass usring's entry points. The goroutines also check the content of the objects around.
package main

// #include <stdlib.h>
import "C"

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
)

func objects() [][]byte {
	all := make([][]byte, 50)
	for index := range all {
		all[index] = make([]byte, 100+16*index)
		for at := range all[index] {
			all[index][at] = byte(at)
		}
	}
	return all
}

func intact(all [][]byte) bool {
	for _, object := range all {
		for at, value := range object {
			if value != byte(at) {
				return false
			}
		}
	}
	return true
}

func main() {
	// The program is linked with libc, and so has a loader.
	C.abs(-1)
	var wrong atomic.Int32
	var everybody sync.WaitGroup
	for worker := 0; worker < 16; worker++ {
		everybody.Add(1)
		go func(worker int) {
			defer everybody.Done()
			for round := 0; round < 15; round++ {
				all := objects()
				words := fmt.Sprintf("%d %d", worker, round)
				said, err := exec.Command("/bin/echo", words).Output()
				if err != nil || string(said) != words+"\n" || !intact(all) {
					wrong.Add(1)
				}
				if syscall.Dup2(0, 700+worker) != nil || syscall.Close(700+worker) != nil {
					wrong.Add(1)
				}
				runtime.GC()
			}
		}(worker)
	}
	everybody.Wait()
	if wrong.Load() != 0 {
		fmt.Println(wrong.Load(), "times wrong")
		os.Exit(1)
	}
	fmt.Println("16 goroutines held")
}
