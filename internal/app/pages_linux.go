package app

import (
	"os"
	"syscall"
)

// unmapBinary gives the pages of the program's own binary back.
func unmapBinary() error {
	binary, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	defer smaps.Close()
	clean, err := cleanMappings(smaps, binary)
	if err != nil {
		return err
	}
	for _, m := range clean {
		_, _, failed := syscall.RawSyscall(syscall.SYS_MADVISE, m.from, m.to-m.from, syscall.MADV_DONTNEED)
		if failed != 0 {
			return os.NewSyscallError("madvise", failed)
		}
	}
	return nil
}
