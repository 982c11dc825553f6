! The eight NAS benchmarks as one would write them first, knowing the algorithm: serial Fortran,
! arrays as the published definition has them, no tuning.  npb.py measures npb/ against it.
!
!     npb_plain APP CLASS        (ep, is, cg, mg, ft, lu, sp or bt; S, W or A)
!
! The timed part is the one the benchmarks time.  Prints the seconds, and the results to compare.

module basics
  use, intrinsic :: iso_fortran_env, only: dp => real64, int64
  implicit none
  real(dp), parameter :: pi = 3.141592653589793238462643383279502884_dp
  integer(int64), parameter :: multiplier = 1220703125_int64, mask = 2_int64**46 - 1
  integer(int64) :: state = 314159265_int64 ! of the random numbers

contains

  real(dp) function random()
    state = iand(state * multiplier, mask)
    random = real(state, dp) * 2.0_dp**(-46)
  end function random

  real(dp) function now()
    integer(int64) :: count, rate
    call system_clock(count, rate)
    now = real(count, dp) / real(rate, dp)
  end function now

  subroutine report(seconds)
    real(dp), intent(in) :: seconds
    print '(a,f12.6)', 'seconds ', seconds
  end subroutine report

  subroutine result(label, value)
    character(*), intent(in) :: label
    real(dp), intent(in) :: value
    print '(a,a,a,es24.16)', 'result ', label, ' =', value
  end subroutine result
end module basics

! ---- EP: Gaussian deviates, counted --------------------------------------------------------------

module ep
  use basics
  implicit none
contains
  subroutine run_ep(log2_pairs)
    integer, intent(in) :: log2_pairs
    integer, parameter :: block_pairs = 65536
    real(dp) :: numbers(2 * block_pairs), x, y, t, sum_x, sum_y, start
    integer :: b, i, annulus
    integer(int64) :: counts(0:9)

    start = now()
    state = 271828183_int64
    counts = 0
    sum_x = 0
    sum_y = 0
    do b = 1, 2**(log2_pairs - 16)
      do i = 1, 2 * block_pairs
        numbers(i) = random()
      end do
      do i = 1, block_pairs
        x = 2 * numbers(2 * i - 1) - 1
        y = 2 * numbers(2 * i) - 1
        t = x * x + y * y
        if (t <= 1) then
          t = sqrt(-2 * log(t) / t)
          x = x * t
          y = y * t
          annulus = int(max(abs(x), abs(y)))
          counts(annulus) = counts(annulus) + 1
          sum_x = sum_x + x
          sum_y = sum_y + y
        end if
      end do
    end do
    call report(now() - start)
    call result('sum of x', sum_x)
    call result('sum of y', sum_y)
  end subroutine run_ep
end module ep

! ---- IS: ranks keys by counting --------------------------------------------------------------------

module is
  use basics
  implicit none
contains
  subroutine run_is(log2_keys, log2_max)
    integer, intent(in) :: log2_keys, log2_max
    integer, allocatable :: keys(:), copy(:), ranks(:), sorted(:)
    integer :: i, k, keys_in_all, iteration
    real(dp) :: start

    keys_in_all = 2**log2_keys
    allocate (keys(0:keys_in_all - 1), copy(0:keys_in_all - 1), ranks(0:2**log2_max))
    allocate (sorted(0:keys_in_all - 1))
    do i = 0, keys_in_all - 1
      keys(i) = int(2**log2_max / 4 * (random() + random() + random() + random()))
    end do
    call rank_keys(1)
    start = now()
    do iteration = 1, 10
      call rank_keys(iteration)
    end do
    call report(now() - start)

    do i = 0, keys_in_all - 1
      k = copy(i)
      ranks(k) = ranks(k) - 1
      sorted(ranks(k)) = k
    end do
    if (any(sorted(1:) < sorted(:keys_in_all - 2))) error stop 'IS: not sorted'

  contains
    subroutine rank_keys(iteration)
      integer, intent(in) :: iteration
      integer :: i
      keys(iteration) = iteration
      keys(iteration + 10) = 2**log2_max - iteration
      ranks = 0
      do i = 0, keys_in_all - 1
        copy(i) = keys(i)
        ranks(keys(i)) = ranks(keys(i)) + 1
      end do
      do i = 1, 2**log2_max
        ranks(i) = ranks(i) + ranks(i - 1)
      end do
    end subroutine rank_keys
  end subroutine run_is
end module is

! ---- CG: conjugate gradients with a sparse matrix --------------------------------------------------

module cg
  use basics
  implicit none
  integer, allocatable :: row_start(:), column(:)
  real(dp), allocatable :: value(:)
contains
  ! A = sum of w_i v_i v_i^T + (0.1 - shift) I.
  subroutine make_matrix(n, nonzer, shift)
    integer, intent(in) :: n, nonzer
    real(dp), intent(in) :: shift
    integer, allocatable :: index(:, :), length(:), place(:)
    real(dp), allocatable :: v(:, :), weight(:)
    integer :: i, j, k, m, places, at, row, first
    real(dp) :: number, element

    allocate (index(nonzer + 1, n), length(n), place(n), v(nonzer + 1, n), weight(n))
    places = 1
    do while (places < n)
      places = 2 * places
    end do
    number = random()
    do i = 1, n
      weight(i) = 0.1_dp**(real(i - 1, dp) / n)
      m = 0
      do while (m < nonzer)
        number = random()
        at = int(places * random()) + 1
        if (at > n) cycle
        if (any(index(:m, i) == at)) cycle
        m = m + 1
        index(m, i) = at
        v(m, i) = number
      end do
      at = m + 1
      do k = 1, m
        if (index(k, i) == i) at = k
      end do
      index(at, i) = i
      v(at, i) = 0.5_dp
      length(i) = max(m, at)
    end do

    allocate (row_start(n + 1))
    row_start = 0
    do i = 1, n
      do k = 1, length(i)
        row_start(index(k, i) + 1) = row_start(index(k, i) + 1) + length(i)
      end do
    end do
    row_start(1) = 1
    do i = 1, n
      row_start(i + 1) = row_start(i + 1) + row_start(i)
    end do
    allocate (column(row_start(n + 1)), value(row_start(n + 1)))
    place = row_start(:n)
    do i = 1, n
      do k = 1, length(i)
        row = index(k, i)
        do m = 1, length(i)
          element = weight(i) * v(k, i) * v(m, i)
          if (row == i .and. index(m, i) == i) element = element + 0.1_dp - shift
          ! keep the row in order, adding up what falls on the same place
          at = place(row)
          do while (at > row_start(row))
            if (column(at - 1) <= index(m, i)) exit
            at = at - 1
          end do
          if (at > row_start(row)) then
            if (column(at - 1) == index(m, i)) then
              value(at - 1) = value(at - 1) + element
              cycle
            end if
          end if
          do j = place(row), at + 1, -1
            column(j) = column(j - 1)
            value(j) = value(j - 1)
          end do
          column(at) = index(m, i)
          value(at) = element
          place(row) = place(row) + 1
        end do
      end do
    end do
    k = 1
    do row = 1, n
      first = row_start(row)
      row_start(row) = k
      do j = first, place(row) - 1
        column(k) = column(j)
        value(k) = value(j)
        k = k + 1
      end do
    end do
    row_start(n + 1) = k
  end subroutine make_matrix

  subroutine multiply(n, x, y)
    integer, intent(in) :: n
    real(dp), intent(in) :: x(n)
    real(dp), intent(out) :: y(n)
    integer :: i, k
    real(dp) :: sum
    do i = 1, n
      sum = 0
      do k = row_start(i), row_start(i + 1) - 1
        sum = sum + value(k) * x(column(k))
      end do
      y(i) = sum
    end do
  end subroutine multiply

  subroutine solve(n, x, z, residual)
    integer, intent(in) :: n
    real(dp), intent(in) :: x(n)
    real(dp), intent(out) :: z(n), residual
    real(dp) :: p(n), q(n), r(n), rho, rho_before, alpha
    integer :: step

    z = 0
    r = x
    p = r
    rho = dot_product(r, r)
    do step = 1, 25
      call multiply(n, p, q)
      alpha = rho / dot_product(p, q)
      z = z + alpha * p
      r = r - alpha * q
      rho_before = rho
      rho = dot_product(r, r)
      p = r + rho / rho_before * p
    end do
    call multiply(n, z, r)
    residual = norm2(x - r)
  end subroutine solve

  subroutine run_cg(n, nonzer, iterations, shift)
    integer, intent(in) :: n, nonzer, iterations
    real(dp), intent(in) :: shift
    real(dp), allocatable :: x(:), z(:)
    real(dp) :: zeta, residual, start
    integer :: i

    allocate (x(n), z(n))
    call make_matrix(n, nonzer, shift)
    x = 1
    call solve(n, x, z, residual)
    start = now()
    do i = 1, iterations
      call solve(n, x, z, residual)
      zeta = shift + 1 / dot_product(x, z)
      x = z / sqrt(dot_product(z, z))
    end do
    call report(now() - start)
    call result('zeta', zeta)
  end subroutine run_cg
end module cg

! ---- MG: V-cycles ------------------------------------------------------------------------------------

module mg
  use basics
  implicit none
  type grid
    integer :: n
    real(dp), allocatable :: u(:, :, :), r(:, :, :)
  end type grid
contains
  subroutine wrap(n, a) ! periodic ghost points
    integer, intent(in) :: n
    real(dp), intent(inout) :: a(0:n + 1, 0:n + 1, 0:n + 1)
    a(0, 1:n, 1:n) = a(n, 1:n, 1:n)
    a(n + 1, 1:n, 1:n) = a(1, 1:n, 1:n)
    a(:, 0, 1:n) = a(:, n, 1:n)
    a(:, n + 1, 1:n) = a(:, 1, 1:n)
    a(:, :, 0) = a(:, :, n)
    a(:, :, n + 1) = a(:, :, 1)
  end subroutine wrap

  subroutine make_residual(n, u, v, r)
    integer, intent(in) :: n
    real(dp), intent(in) :: u(0:n + 1, 0:n + 1, 0:n + 1), v(0:n + 1, 0:n + 1, 0:n + 1)
    real(dp), intent(out) :: r(0:n + 1, 0:n + 1, 0:n + 1)
    real(dp) :: u1(0:n + 1), u2(0:n + 1)
    integer :: i, j, k
    do k = 1, n
      do j = 1, n
        do i = 0, n + 1
          u1(i) = u(i, j - 1, k) + u(i, j + 1, k) + u(i, j, k - 1) + u(i, j, k + 1)
          u2(i) = u(i, j - 1, k - 1) + u(i, j + 1, k - 1) + u(i, j - 1, k + 1) + u(i, j + 1, k + 1)
        end do
        do i = 1, n
          r(i, j, k) = v(i, j, k) + 8.0_dp / 3 * u(i, j, k) &
                       - 1.0_dp / 6 * (u2(i) + u1(i - 1) + u1(i + 1)) &
                       - 1.0_dp / 12 * (u2(i - 1) + u2(i + 1))
        end do
      end do
    end do
    call wrap(n, r)
  end subroutine make_residual

  subroutine smooth(n, r, u, c)
    integer, intent(in) :: n
    real(dp), intent(in) :: r(0:n + 1, 0:n + 1, 0:n + 1), c(0:2)
    real(dp), intent(inout) :: u(0:n + 1, 0:n + 1, 0:n + 1)
    real(dp) :: r1(0:n + 1), r2(0:n + 1)
    integer :: i, j, k
    do k = 1, n
      do j = 1, n
        do i = 0, n + 1
          r1(i) = r(i, j - 1, k) + r(i, j + 1, k) + r(i, j, k - 1) + r(i, j, k + 1)
          r2(i) = r(i, j - 1, k - 1) + r(i, j + 1, k - 1) + r(i, j - 1, k + 1) + r(i, j + 1, k + 1)
        end do
        do i = 1, n
          u(i, j, k) = u(i, j, k) + c(0) * r(i, j, k) &
                       + c(1) * (r(i - 1, j, k) + r(i + 1, j, k) + r1(i)) &
                       + c(2) * (r2(i) + r1(i - 1) + r1(i + 1))
        end do
      end do
    end do
    call wrap(n, u)
  end subroutine smooth

  subroutine restrict(n, r, coarse)
    integer, intent(in) :: n ! of the fine grid
    real(dp), intent(in) :: r(0:n + 1, 0:n + 1, 0:n + 1)
    real(dp), intent(out) :: coarse(0:n / 2 + 1, 0:n / 2 + 1, 0:n / 2 + 1)
    real(dp) :: x1(0:n + 1), y1(0:n + 1)
    integer :: i, j, k
    do k = 2, n, 2
      do j = 2, n, 2
        do i = 1, n + 1
          x1(i) = r(i, j - 1, k) + r(i, j + 1, k) + r(i, j, k - 1) + r(i, j, k + 1)
          y1(i) = r(i, j - 1, k - 1) + r(i, j + 1, k - 1) + r(i, j - 1, k + 1) + r(i, j + 1, k + 1)
        end do
        do i = 2, n, 2
          coarse(i / 2, j / 2, k / 2) = 0.5_dp * r(i, j, k) &
              + 0.25_dp * (r(i - 1, j, k) + r(i + 1, j, k) + x1(i)) &
              + 0.125_dp * (x1(i - 1) + x1(i + 1) + y1(i)) + 0.0625_dp * (y1(i - 1) + y1(i + 1))
        end do
      end do
    end do
    call wrap(n / 2, coarse)
  end subroutine restrict

  subroutine interpolate(n, coarse, u)
    integer, intent(in) :: n ! of the fine grid
    real(dp), intent(in) :: coarse(0:n / 2 + 1, 0:n / 2 + 1, 0:n / 2 + 1)
    real(dp), intent(inout) :: u(0:n + 1, 0:n + 1, 0:n + 1)
    real(dp) :: z1(0:n / 2 + 1), z2(0:n / 2 + 1), z3(0:n / 2 + 1)
    integer :: i, j, k
    do k = 0, n / 2
      do j = 0, n / 2
        do i = 0, n / 2 + 1
          z1(i) = coarse(i, j + 1, k) + coarse(i, j, k)
          z2(i) = coarse(i, j, k + 1) + coarse(i, j, k)
          z3(i) = coarse(i, j + 1, k + 1) + coarse(i, j, k + 1) + z1(i)
        end do
        do i = 0, n / 2
          u(2*i, 2*j, 2*k) = u(2*i, 2*j, 2*k) + coarse(i, j, k)
          u(2*i+1, 2*j, 2*k) = u(2*i+1, 2*j, 2*k) + 0.5_dp * (coarse(i + 1, j, k) + coarse(i, j, k))
        end do
        do i = 0, n / 2
          u(2*i, 2*j+1, 2*k) = u(2*i, 2*j+1, 2*k) + 0.5_dp * z1(i)
          u(2*i+1, 2*j+1, 2*k) = u(2*i+1, 2*j+1, 2*k) + 0.25_dp * (z1(i) + z1(i + 1))
        end do
        do i = 0, n / 2
          u(2*i, 2*j, 2*k+1) = u(2*i, 2*j, 2*k+1) + 0.5_dp * z2(i)
          u(2*i+1, 2*j, 2*k+1) = u(2*i+1, 2*j, 2*k+1) + 0.25_dp * (z2(i) + z2(i + 1))
        end do
        do i = 0, n / 2
          u(2*i, 2*j+1, 2*k+1) = u(2*i, 2*j+1, 2*k+1) + 0.25_dp * z3(i)
          u(2*i+1, 2*j+1, 2*k+1) = u(2*i+1, 2*j+1, 2*k+1) + 0.125_dp * (z3(i) + z3(i + 1))
        end do
      end do
    end do
  end subroutine interpolate

  subroutine cycle_once(g, levels, v, c)
    integer, intent(in) :: levels
    type(grid), intent(inout) :: g(levels)
    real(dp), intent(in) :: v(:, :, :), c(0:2)
    integer :: l
    do l = levels, 2, -1
      call restrict(g(l)%n, g(l)%r, g(l - 1)%r)
    end do
    g(1)%u = 0
    call smooth(g(1)%n, g(1)%r, g(1)%u, c)
    do l = 2, levels
      if (l < levels) g(l)%u = 0
      call interpolate(g(l)%n, g(l - 1)%u, g(l)%u)
      if (l < levels) then
        call residual_in_place(g(l)%n, g(l)%u, g(l)%r)
      else
        call make_residual(g(l)%n, g(l)%u, v, g(l)%r)
      end if
      call smooth(g(l)%n, g(l)%r, g(l)%u, c)
    end do
    call make_residual(g(levels)%n, g(levels)%u, v, g(levels)%r)
  end subroutine cycle_once

  subroutine residual_in_place(n, u, r) ! r = r - A u; Fortran forbids make_residual(n, u, r, r)
    integer, intent(in) :: n
    real(dp), intent(in) :: u(0:n + 1, 0:n + 1, 0:n + 1)
    real(dp), intent(inout) :: r(0:n + 1, 0:n + 1, 0:n + 1)
    real(dp) :: u1(0:n + 1), u2(0:n + 1)
    integer :: i, j, k
    do k = 1, n
      do j = 1, n
        do i = 0, n + 1
          u1(i) = u(i, j - 1, k) + u(i, j + 1, k) + u(i, j, k - 1) + u(i, j, k + 1)
          u2(i) = u(i, j - 1, k - 1) + u(i, j + 1, k - 1) + u(i, j - 1, k + 1) + u(i, j + 1, k + 1)
        end do
        do i = 1, n
          r(i, j, k) = r(i, j, k) + 8.0_dp / 3 * u(i, j, k) &
                       - 1.0_dp / 6 * (u2(i) + u1(i - 1) + u1(i + 1)) &
                       - 1.0_dp / 12 * (u2(i - 1) + u2(i + 1))
        end do
      end do
    end do
    call wrap(n, r)
  end subroutine residual_in_place

  subroutine run_mg(levels, iterations, c)
    integer, intent(in) :: levels, iterations
    real(dp), intent(in) :: c(0:2)
    type(grid), allocatable :: g(:)
    real(dp), allocatable :: v(:, :, :), numbers(:, :, :)
    real(dp) :: start, norm
    integer :: l, n, i, j, k, at(3)

    n = 2**levels
    allocate (g(levels), v(0:n + 1, 0:n + 1, 0:n + 1), numbers(n, n, n))
    do l = 1, levels
      g(l)%n = 2**l
      allocate (g(l)%u(0:2**l + 1, 0:2**l + 1, 0:2**l + 1))
      allocate (g(l)%r(0:2**l + 1, 0:2**l + 1, 0:2**l + 1))
      g(l)%u = 0
    end do
    do k = 1, n
      do j = 1, n
        do i = 1, n
          numbers(i, j, k) = random()
        end do
      end do
    end do
    v = 0
    do i = 1, 10
      at = maxloc(numbers)
      v(at(1), at(2), at(3)) = 1
      numbers(at(1), at(2), at(3)) = 0.5_dp
      at = minloc(numbers)
      v(at(1), at(2), at(3)) = -1
      numbers(at(1), at(2), at(3)) = 0.5_dp
    end do
    call wrap(n, v)
    deallocate (numbers)

    call make_residual(n, g(levels)%u, v, g(levels)%r)
    call cycle_once(g, levels, v, c)
    g(levels)%u = 0
    start = now()
    call make_residual(n, g(levels)%u, v, g(levels)%r)
    norm = norm_of(n, g(levels)%r)
    do i = 1, iterations
      call cycle_once(g, levels, v, c)
    end do
    norm = norm_of(n, g(levels)%r)
    call report(now() - start)
    call result('residual norm', norm)
  end subroutine run_mg

  real(dp) function norm_of(n, r)
    integer, intent(in) :: n
    real(dp), intent(in) :: r(0:n + 1, 0:n + 1, 0:n + 1)
    integer :: i, j, k
    norm_of = 0
    do k = 1, n
      do j = 1, n
        do i = 1, n
          norm_of = norm_of + r(i, j, k)**2
        end do
      end do
    end do
    norm_of = sqrt(norm_of / real(n, dp)**3)
  end function norm_of
end module mg

! ---- FT: three-dimensional FFT -----------------------------------------------------------------------

module ft
  use basics
  implicit none
  integer, parameter :: lines = 16 ! transformed at a time, as the published code does
  integer, parameter :: longest = 512
  complex(dp) :: root(0:longest - 1)
contains
  ! Self-sorting radix-2 transforms of `lines` lines; the result is in the first half of work.
  subroutine transform(n, inverse, work)
    integer, intent(in) :: n
    logical, intent(in) :: inverse
    complex(dp), intent(inout) :: work(lines, 0:n - 1, 2)
    integer :: l, m, from
    l = n / 2
    m = 1
    from = 1
    do while (l >= 1)
      call stage(n, l, m, inverse, work(:, :, from), work(:, :, 3 - from))
      from = 3 - from
      l = l / 2
      m = 2 * m
    end do
    if (from == 2) work(:, :, 1) = work(:, :, 2)
  end subroutine transform

  subroutine stage(n, l, m, inverse, x, y)
    integer, intent(in) :: n, l, m
    logical, intent(in) :: inverse
    complex(dp), intent(in) :: x(lines, 0:n - 1)
    complex(dp), intent(out) :: y(lines, 0:n - 1)
    complex(dp) :: w, difference
    integer :: j, k, b
    do j = 0, l - 1
      w = root(j * m * (longest / n))
      if (inverse) w = conjg(w)
      do k = 0, m - 1
        do b = 1, lines
          difference = x(b, k + j * m) - x(b, k + (j + l) * m)
          y(b, k + 2 * j * m) = x(b, k + j * m) + x(b, k + (j + l) * m)
          y(b, k + (2 * j + 1) * m) = w * difference
        end do
      end do
    end do
  end subroutine stage

  subroutine along_x(nx, ny, nz, inverse, u)
    integer, intent(in) :: nx, ny, nz
    logical, intent(in) :: inverse
    complex(dp), intent(inout) :: u(0:nx - 1, ny, nz)
    complex(dp) :: work(lines, 0:nx - 1, 2)
    integer :: i, j, k, b
    do k = 1, nz
      do j = 0, ny - 1, lines
        do b = 1, lines
          do i = 0, nx - 1
            work(b, i, 1) = u(i, j + b, k)
          end do
        end do
        call transform(nx, inverse, work)
        do b = 1, lines
          do i = 0, nx - 1
            u(i, j + b, k) = work(b, i, 1)
          end do
        end do
      end do
    end do
  end subroutine along_x

  subroutine along_y(nx, ny, nz, inverse, u)
    integer, intent(in) :: nx, ny, nz
    logical, intent(in) :: inverse
    complex(dp), intent(inout) :: u(nx, 0:ny - 1, nz)
    complex(dp) :: work(lines, 0:ny - 1, 2)
    integer :: i, j, k, b
    do k = 1, nz
      do i = 0, nx - 1, lines
        do j = 0, ny - 1
          do b = 1, lines
            work(b, j, 1) = u(i + b, j, k)
          end do
        end do
        call transform(ny, inverse, work)
        do j = 0, ny - 1
          do b = 1, lines
            u(i + b, j, k) = work(b, j, 1)
          end do
        end do
      end do
    end do
  end subroutine along_y

  subroutine along_z(nx, ny, nz, inverse, u)
    integer, intent(in) :: nx, ny, nz
    logical, intent(in) :: inverse
    complex(dp), intent(inout) :: u(nx, ny, 0:nz - 1)
    complex(dp) :: work(lines, 0:nz - 1, 2)
    integer :: i, j, k, b
    do j = 1, ny
      do i = 0, nx - 1, lines
        do k = 0, nz - 1
          do b = 1, lines
            work(b, k, 1) = u(i + b, j, k)
          end do
        end do
        call transform(nz, inverse, work)
        do k = 0, nz - 1
          do b = 1, lines
            u(i + b, j, k) = work(b, k, 1)
          end do
        end do
      end do
    end do
  end subroutine along_z

  subroutine run_ft(nx, ny, nz, iterations)
    integer, intent(in) :: nx, ny, nz, iterations
    complex(dp), allocatable :: u0(:, :, :), u1(:, :, :)
    real(dp), allocatable :: twiddle(:, :, :)
    complex(dp) :: sum, sums(iterations)
    real(dp) :: start, re, im
    integer :: i, j, k, step
    character(16) :: label

    allocate (u0(nx, ny, nz), u1(nx, ny, nz), twiddle(nx, ny, nz))
    call once(.true.)
    start = now()
    call once(.false.)
    do step = 1, iterations
      do k = 1, nz
        do j = 1, ny
          do i = 1, nx
            u0(i, j, k) = u0(i, j, k) * twiddle(i, j, k)
            u1(i, j, k) = u0(i, j, k)
          end do
        end do
      end do
      call along_z(nx, ny, nz, .true., u1)
      call along_y(nx, ny, nz, .true., u1)
      call along_x(nx, ny, nz, .true., u1)
      sum = 0
      do j = 1, 1024
        sum = sum + u1(mod(j, nx) + 1, mod(3 * j, ny) + 1, mod(5 * j, nz) + 1)
      end do
      sums(step) = sum / (real(nx, dp) * ny * nz)
    end do
    call report(now() - start)
    do step = 1, iterations
      write (label, '(a,i2)') 'step ', step
      call result(trim(label)//' real', real(sums(step)))
      call result(trim(label)//' imag.', aimag(sums(step)))
    end do

  contains
    subroutine once(untimed)
      logical, intent(in) :: untimed
      do k = 0, longest - 1
        root(k) = exp(cmplx(0, -2 * pi * k / longest, dp))
      end do
      state = 314159265_int64
      do k = 1, nz
        do j = 1, ny
          do i = 1, nx
            twiddle(i, j, k) = exp(-4e-6_dp * pi**2 * (wave(i, nx)**2 + wave(j, ny)**2 + wave(k, nz)**2))
            re = random()
            im = random()
            u0(i, j, k) = cmplx(re, im, dp)
          end do
        end do
      end do
      call along_x(nx, ny, nz, .false., u0)
      call along_y(nx, ny, nz, .false., u0)
      call along_z(nx, ny, nz, .false., u0)
      if (untimed) u1 = u0 ! touches its memory
    end subroutine once

    real(dp) function wave(i, n)
      integer, intent(in) :: i, n
      wave = modulo(i - 1 + n / 2, n) - n / 2
    end function wave
  end subroutine run_ft
end module ft

! ---- The flow that LU, SP and BT share -----------------------------------------------------------------

module flow
  use basics
  implicit none
  integer :: n
  real(dp) :: dt, convect, diffuse ! 1 / (2h), 1 / h^2
  real(dp), allocatable :: u(:, :, :, :), rhs(:, :, :, :), forcing(:, :, :, :)
  real(dp), allocatable :: v(:, :, :, :), inverse(:, :, :), kinetic(:, :, :), pressure(:, :, :)
  real(dp), parameter :: k1 = 1.4_dp, k2 = 0.4_dp, k34 = 0.1_dp, k15 = 1.96_dp
  real(dp), parameter :: diffusion(3) = [0.75_dp, 0.75_dp, 1.0_dp], dissipation = 0.25_dp
contains
  subroutine compute_rhs()
    integer :: i, j, k
    do k = 1, n
      do j = 1, n
        do i = 1, n
          inverse(i, j, k) = 1 / u(1, i, j, k)
          v(:, i, j, k) = u(2:4, i, j, k) * inverse(i, j, k)
          kinetic(i, j, k) = 0.5_dp * (u(2, i, j, k) * v(1, i, j, k) + u(3, i, j, k) * v(2, i, j, k) &
                                       + u(4, i, j, k) * v(3, i, j, k))
          pressure(i, j, k) = k2 * (u(5, i, j, k) - kinetic(i, j, k))
        end do
      end do
    end do
    rhs = forcing
    call add_axis(1, 1, 0, 0)
    call add_axis(2, 0, 1, 0)
    call add_axis(3, 0, 0, 1)
  end subroutine compute_rhs

  ! One axis' part of R(U); (di, dj, dk) is the step along it.
  subroutine add_axis(a, di, dj, dk)
    integer, intent(in) :: a, di, dj, dk
    integer :: i, j, k, l, m, ip, jp, kp, im, jm, km
    real(dp) :: vp, vm, d(5), third

    do k = 2, n - 1
      do j = 2, n - 1
        do i = 2, n - 1
          ip = i + di
          jp = j + dj
          kp = k + dk
          im = i - di
          jm = j - dj
          km = k - dk
          vp = v(a, ip, jp, kp)
          vm = v(a, im, jm, km)
          d = diffusion(a) * (u(:, ip, jp, kp) - 2 * u(:, i, j, k) + u(:, im, jm, km))
          d(2:4) = d(2:4) + k34 * (v(:, ip, jp, kp) - 2 * v(:, i, j, k) + v(:, im, jm, km))
          third = k34 / 3 * (vp - 2 * v(a, i, j, k) + vm)
          d(1 + a) = d(1 + a) + third
          d(5) = d(5) + k34 * ((1 - k15) * (kinetic(ip, jp, kp) * inverse(ip, jp, kp) &
                                            - 2 * kinetic(i, j, k) * inverse(i, j, k) &
                                            + kinetic(im, jm, km) * inverse(im, jm, km)) &
                               + (vp**2 - 2 * v(a, i, j, k)**2 + vm**2) / 6 &
                               + k15 * (u(5, ip, jp, kp) * inverse(ip, jp, kp) &
                                        - 2 * u(5, i, j, k) * inverse(i, j, k) &
                                        + u(5, im, jm, km) * inverse(im, jm, km)))
          d = diffuse * d
          d(1) = d(1) - convect * (u(1 + a, ip, jp, kp) - u(1 + a, im, jm, km))
          d(2:4) = d(2:4) - convect * (u(2:4, ip, jp, kp) * vp - u(2:4, im, jm, km) * vm)
          d(1 + a) = d(1 + a) - convect * (pressure(ip, jp, kp) - pressure(im, jm, km))
          d(5) = d(5) - convect * ((u(5, ip, jp, kp) + pressure(ip, jp, kp)) * vp &
                                   - (u(5, im, jm, km) + pressure(im, jm, km)) * vm)
          rhs(:, i, j, k) = rhs(:, i, j, k) + d
        end do
      end do
    end do
    do k = 2, n - 1
      do j = 2, n - 1
        do i = 2, n - 1
          l = i * di + j * dj + k * dk
          if (l == 2) then
            d = 5 * u(:, i, j, k) - 4 * u(:, i + di, j + dj, k + dk) + u(:, i + 2*di, j + 2*dj, k + 2*dk)
          else if (l == 3) then
            d = -4 * u(:, i - di, j - dj, k - dk) + 6 * u(:, i, j, k) &
                - 4 * u(:, i + di, j + dj, k + dk) + u(:, i + 2*di, j + 2*dj, k + 2*dk)
          else if (l == n - 2) then
            d = u(:, i - 2*di, j - 2*dj, k - 2*dk) - 4 * u(:, i - di, j - dj, k - dk) &
                + 6 * u(:, i, j, k) - 4 * u(:, i + di, j + dj, k + dk)
          else if (l == n - 1) then
            d = u(:, i - 2*di, j - 2*dj, k - 2*dk) - 4 * u(:, i - di, j - dj, k - dk) &
                + 5 * u(:, i, j, k)
          else
            d = u(:, i - 2*di, j - 2*dj, k - 2*dk) - 4 * u(:, i - di, j - dj, k - dk) &
                + 6 * u(:, i, j, k) - 4 * u(:, i + di, j + dj, k + dk) &
                + u(:, i + 2*di, j + 2*dj, k + 2*dk)
          end if
          do m = 1, 5
            rhs(m, i, j, k) = rhs(m, i, j, k) - dissipation * d(m)
          end do
        end do
      end do
    end do
  end subroutine add_axis

  ! Jacobians of the flux F and of the viscous flux Q (without d_a) along an axis at flow w.
  subroutine jacobians(a, w, f, q)
    integer, intent(in) :: a
    real(dp), intent(in) :: w(5)
    real(dp), intent(out) :: f(5, 5), q(5, 5)
    real(dp) :: r, s(3), e, k, nu, c
    integer :: m

    r = 1 / w(1)
    s = w(2:4) * r
    e = w(5) * r
    k = 0.5_dp * (s(1)**2 + s(2)**2 + s(3)**2)
    nu = k34 * r
    f = 0
    q = 0
    f(1, 1 + a) = 1
    do m = 1, 3
      f(1 + m, 1) = -s(m) * s(a)
      f(1 + m, 1 + m) = f(1 + m, 1 + m) + s(a)
      f(1 + m, 1 + a) = f(1 + m, 1 + a) + s(m)
      f(1 + a, 1 + m) = f(1 + a, 1 + m) - k2 * s(m)
      f(5, 1 + m) = -k2 * s(m) * s(a)
      c = nu
      if (m == a) c = 4.0_dp / 3 * nu
      q(1 + m, 1) = -c * s(m)
      q(1 + m, 1 + m) = c
      q(5, 1 + m) = (c - k15 * nu) * s(m)
      q(5, 1) = q(5, 1) - q(5, 1 + m) * s(m)
    end do
    f(1 + a, 1) = f(1 + a, 1) + k2 * k
    f(1 + a, 5) = k2
    f(5, 1) = s(a) * (2 * k2 * k - k1 * e)
    f(5, 1 + a) = f(5, 1 + a) + k1 * e - k2 * k
    f(5, 5) = k1 * s(a)
    q(5, 1) = q(5, 1) - k15 * nu * e
    q(5, 5) = k15 * nu
  end subroutine jacobians

  pure function exact(x, y, z) result(w)
    real(dp), intent(in) :: x, y, z
    real(dp) :: w(5)
    real(dp), parameter :: c(5, 13) = reshape([ &
      2.0_dp, 1.0_dp, 2.0_dp, 2.0_dp, 5.0_dp, 0.0_dp, 0.0_dp, 2.0_dp, 2.0_dp, 4.0_dp, &
      0.0_dp, 0.0_dp, 0.0_dp, 0.0_dp, 3.0_dp, 4.0_dp, 0.0_dp, 0.0_dp, 0.0_dp, 2.0_dp, &
      5.0_dp, 1.0_dp, 0.0_dp, 0.0_dp, 0.1_dp, 3.0_dp, 2.0_dp, 2.0_dp, 2.0_dp, 0.4_dp, &
      0.5_dp, 3.0_dp, 3.0_dp, 3.0_dp, 0.3_dp, 0.02_dp, 0.01_dp, 0.04_dp, 0.03_dp, 0.05_dp, &
      0.01_dp, 0.03_dp, 0.03_dp, 0.05_dp, 0.04_dp, 0.03_dp, 0.02_dp, 0.05_dp, 0.04_dp, 0.03_dp, &
      0.5_dp, 0.4_dp, 0.3_dp, 0.2_dp, 0.1_dp, 0.4_dp, 0.3_dp, 0.5_dp, 0.1_dp, 0.3_dp, &
      0.3_dp, 0.5_dp, 0.4_dp, 0.3_dp, 0.2_dp], [5, 13])
    w = c(:, 1) + x * (c(:, 2) + x * (c(:, 5) + x * (c(:, 8) + x * c(:, 11)))) &
        + y * (c(:, 3) + y * (c(:, 6) + y * (c(:, 9) + y * c(:, 12)))) &
        + z * (c(:, 4) + z * (c(:, 7) + z * (c(:, 10) + z * c(:, 13))))
  end function exact

  real(dp) function at(i)
    integer, intent(in) :: i
    at = real(i - 1, dp) / (n - 1)
  end function at

  subroutine set_up(points, step)
    integer, intent(in) :: points
    real(dp), intent(in) :: step
    integer :: i, j, k
    n = points
    dt = step
    convect = 0.5_dp * (n - 1)
    diffuse = real(n - 1, dp)**2
    allocate (u(5, n, n, n), rhs(5, n, n, n), forcing(5, n, n, n), v(3, n, n, n))
    allocate (inverse(n, n, n), kinetic(n, n, n), pressure(n, n, n))
    do k = 1, n
      do j = 1, n
        do i = 1, n
          u(:, i, j, k) = exact(at(i), at(j), at(k))
        end do
      end do
    end do
    forcing = 0
    call compute_rhs()
    forcing = -rhs
  end subroutine set_up

  subroutine set_start()
    integer :: i, j, k
    real(dp) :: x, y, z, px(5), py(5), pz(5)
    do k = 1, n
      do j = 1, n
        do i = 1, n
          x = at(i)
          y = at(j)
          z = at(k)
          if (any([i, j, k] == 1) .or. any([i, j, k] == n)) then
            u(:, i, j, k) = exact(x, y, z)
          else
            px = x * exact(1.0_dp, y, z) + (1 - x) * exact(0.0_dp, y, z)
            py = y * exact(x, 1.0_dp, z) + (1 - y) * exact(x, 0.0_dp, z)
            pz = z * exact(x, y, 1.0_dp) + (1 - z) * exact(x, y, 0.0_dp)
            u(:, i, j, k) = px + py + pz - px * py - py * pz - pz * px + px * py * pz
          end if
        end do
      end do
    end do
  end subroutine set_start

  subroutine report_norms()
    real(dp) :: residual(5), error(5)
    integer :: i, j, k, m
    character(1) :: digit
    residual = 0
    error = 0
    do k = 2, n - 1
      do j = 2, n - 1
        do i = 2, n - 1
          residual = residual + rhs(:, i, j, k)**2
          error = error + (u(:, i, j, k) - exact(at(i), at(j), at(k)))**2
        end do
      end do
    end do
    do m = 1, 5
      write (digit, '(i1)') m
      call result('residual '//digit, sqrt(residual(m) / real(n - 2, dp)**3))
      call result('error '//digit, sqrt(error(m) / real(n - 2, dp)**3))
    end do
  end subroutine report_norms

  subroutine run(step, steps, rhs_first)
    interface
      subroutine step()
      end subroutine step
    end interface
    integer, intent(in) :: steps
    logical, intent(in) :: rhs_first ! of a step; else last
    real(dp) :: start
    integer :: i
    call set_start()
    call compute_rhs()
    call step()
    call set_start()
    if (.not. rhs_first) call compute_rhs()
    start = now()
    do i = 1, steps
      call step()
    end do
    call report(now() - start)
    if (rhs_first) call compute_rhs()
    call report_norms()
  end subroutine run
end module flow

! ---- LU: symmetric Gauss-Seidel sweeps -------------------------------------------------------------------

module lu
  use flow
  implicit none
  real(dp), parameter :: omega = 1.2_dp
  real(dp), allocatable :: a(:, :, :, :), b(:, :, :, :), c(:, :, :, :), d(:, :, :, :)
contains
  subroutine run_lu(points, steps, step)
    integer, intent(in) :: points, steps
    real(dp), intent(in) :: step
    call set_up(points, step)
    allocate (a(5, 5, n, n), b(5, 5, n, n), c(5, 5, n, n), d(5, 5, n, n))
    call run(step_lu, steps, .false.)
  end subroutine run_lu

  subroutine step_lu()
    integer :: k
    rhs(:, 2:n-1, 2:n-1, 2:n-1) = dt * rhs(:, 2:n-1, 2:n-1, 2:n-1)
    rhs(:, 1, :, :) = 0
    rhs(:, n, :, :) = 0
    rhs(:, :, 1, :) = 0
    rhs(:, :, n, :) = 0
    rhs(:, :, :, 1) = 0
    rhs(:, :, :, n) = 0
    do k = 2, n - 1
      call make_blocks(k, -1, 1.0_dp)
      call solve_lower(k)
    end do
    do k = n - 1, 2, -1
      call make_blocks(k, 1, -1.0_dp)
      call solve_upper(k)
    end do
    u(:, 2:n-1, 2:n-1, 2:n-1) = u(:, 2:n-1, 2:n-1, 2:n-1) &
                                + 1 / (omega * (2 - omega)) * rhs(:, 2:n-1, 2:n-1, 2:n-1)
    call compute_rhs()
  end subroutine step_lu

  ! Blocks of plane k: of the neighbours on one side along z, y, x, and of the point itself.
  subroutine make_blocks(k, side, sign)
    integer, intent(in) :: k, side
    real(dp), intent(in) :: sign
    integer :: i, j, m
    real(dp) :: r, nu, s(3), total
    total = sum(diffusion)
    do j = 2, n - 1
      do i = 2, n - 1
        r = 1 / u(1, i, j, k)
        nu = 2 * dt * diffuse * k34 * r
        s = u(2:4, i, j, k) * r
        d(:, :, i, j) = 0
        d(1, 1, i, j) = 1 + 2 * dt * diffuse * total
        do m = 1, 3
          d(1 + m, 1, i, j) = -10.0_dp / 3 * nu * s(m)
          d(1 + m, 1 + m, i, j) = d(1, 1, i, j) + 10.0_dp / 3 * nu
          d(5, 1 + m, i, j) = (10.0_dp / 3 - 3 * k15) * nu * s(m)
        end do
        d(5, 1, i, j) = -nu * ((10.0_dp / 3 - 3 * k15) * (s(1)**2 + s(2)**2 + s(3)**2) &
                               + 3 * k15 * u(5, i, j, k) * r)
        d(5, 5, i, j) = d(1, 1, i, j) + 3 * k15 * nu
        call neighbour(3, sign, u(:, i, j, k + side), a(:, :, i, j))
        call neighbour(2, sign, u(:, i, j + side, k), b(:, :, i, j))
        call neighbour(1, sign, u(:, i + side, j, k), c(:, :, i, j))
      end do
    end do
  end subroutine make_blocks

  subroutine neighbour(axis, sign, w, block)
    integer, intent(in) :: axis
    real(dp), intent(in) :: sign, w(5)
    real(dp), intent(out) :: block(5, 5)
    real(dp) :: f(5, 5), q(5, 5)
    integer :: m
    call jacobians(axis, w, f, q)
    block = -sign * dt * convect * f - dt * diffuse * q
    do m = 1, 5
      block(m, m) = block(m, m) - dt * diffuse * diffusion(axis)
    end do
  end subroutine neighbour

  subroutine solve_lower(k)
    integer, intent(in) :: k
    integer :: i, j, m
    real(dp) :: t(5)
    do j = 2, n - 1
      do i = 2, n - 1
        t = rhs(:, i, j, k)
        do m = 1, 5
          t = t - omega * (a(:, m, i, j) * rhs(m, i, j, k - 1) + b(:, m, i, j) * rhs(m, i, j - 1, k) &
                           + c(:, m, i, j) * rhs(m, i - 1, j, k))
        end do
        call eliminate(d(:, :, i, j), t)
        rhs(:, i, j, k) = t
      end do
    end do
  end subroutine solve_lower

  subroutine solve_upper(k)
    integer, intent(in) :: k
    integer :: i, j, m
    real(dp) :: t(5)
    do j = n - 1, 2, -1
      do i = n - 1, 2, -1
        t = 0
        do m = 1, 5
          t = t + omega * (a(:, m, i, j) * rhs(m, i, j, k + 1) + b(:, m, i, j) * rhs(m, i, j + 1, k) &
                           + c(:, m, i, j) * rhs(m, i + 1, j, k))
        end do
        call eliminate(d(:, :, i, j), t)
        rhs(:, i, j, k) = rhs(:, i, j, k) - t
      end do
    end do
  end subroutine solve_upper

  subroutine eliminate(block, t) ! t = inverse(block) t by Gaussian elimination
    real(dp), intent(in) :: block(5, 5)
    real(dp), intent(inout) :: t(5)
    real(dp) :: w(5, 5), factor
    integer :: p, r
    w = block
    do p = 1, 4
      do r = p + 1, 5
        factor = w(r, p) / w(p, p)
        w(r, p + 1:) = w(r, p + 1:) - factor * w(p, p + 1:)
        t(r) = t(r) - factor * t(p)
      end do
    end do
    do p = 5, 1, -1
      t(p) = t(p) / w(p, p)
      t(:p - 1) = t(:p - 1) - w(:p - 1, p) * t(p)
    end do
  end subroutine eliminate
end module lu

! ---- BT: block tridiagonal systems -----------------------------------------------------------------------

module bt
  use flow
  implicit none
contains
  subroutine run_bt(points, steps, step)
    integer, intent(in) :: points, steps
    real(dp), intent(in) :: step
    call set_up(points, step)
    call run(step_bt, steps, .true.)
  end subroutine run_bt

  subroutine step_bt()
    integer :: i, j, k
    call compute_rhs()
    rhs(:, 2:n-1, 2:n-1, 2:n-1) = dt * rhs(:, 2:n-1, 2:n-1, 2:n-1)
    do k = 2, n - 1
      do j = 2, n - 1
        call solve_line(1, u(:, :, j, k), rhs(:, :, j, k))
      end do
    end do
    do k = 2, n - 1
      do i = 2, n - 1
        call solve_line(2, u(:, i, :, k), rhs(:, i, :, k))
      end do
    end do
    do j = 2, n - 1
      do i = 2, n - 1
        call solve_line(3, u(:, i, j, :), rhs(:, i, j, :))
      end do
    end do
    u(:, 2:n-1, 2:n-1, 2:n-1) = u(:, 2:n-1, 2:n-1, 2:n-1) + rhs(:, 2:n-1, 2:n-1, 2:n-1)
  end subroutine step_bt

  subroutine solve_line(axis, w, r)
    integer, intent(in) :: axis
    real(dp), intent(in) :: w(5, n)
    real(dp), intent(inout) :: r(5, n)
    real(dp) :: f(5, 5, n), q(5, 5, n), a(5, 5, n), b(5, 5, n), c(5, 5, n), t1, t2
    integer :: l, m
    t1 = dt * diffuse
    t2 = dt * convect
    select case (axis) ! constants let the compiler make three versions
    case (1)
      do l = 1, n
        call jacobians(1, w(:, l), f(:, :, l), q(:, :, l))
      end do
    case (2)
      do l = 1, n
        call jacobians(2, w(:, l), f(:, :, l), q(:, :, l))
      end do
    case (3)
      do l = 1, n
        call jacobians(3, w(:, l), f(:, :, l), q(:, :, l))
      end do
    end select
    do l = 2, n - 1
      a(:, :, l) = -t2 * f(:, :, l - 1) - t1 * q(:, :, l - 1)
      b(:, :, l) = 2 * t1 * q(:, :, l)
      c(:, :, l) = t2 * f(:, :, l + 1) - t1 * q(:, :, l + 1)
      do m = 1, 5
        a(m, m, l) = a(m, m, l) - t1 * diffusion(axis)
        b(m, m, l) = b(m, m, l) + 1 + 2 * t1 * diffusion(axis)
        c(m, m, l) = c(m, m, l) - t1 * diffusion(axis)
      end do
    end do
    call invert(b(:, :, 2), c(:, :, 2), r(:, 2))
    do l = 3, n - 1
      call multiply_vector(a(:, :, l), r(:, l - 1), r(:, l))
      call multiply_block(a(:, :, l), c(:, :, l - 1), b(:, :, l))
      call invert(b(:, :, l), c(:, :, l), r(:, l))
    end do
    do l = n - 2, 2, -1
      call multiply_vector(c(:, :, l), r(:, l + 1), r(:, l))
    end do
  end subroutine solve_line

  subroutine multiply_vector(a, x, y) ! y = y - a x
    real(dp), intent(in) :: a(5, 5), x(5)
    real(dp), intent(inout) :: y(5)
    integer :: m
    do m = 1, 5
      y = y - a(:, m) * x(m)
    end do
  end subroutine multiply_vector

  subroutine multiply_block(a, x, y) ! y = y - a x
    real(dp), intent(in) :: a(5, 5), x(5, 5)
    real(dp), intent(inout) :: y(5, 5)
    integer :: j, m
    do j = 1, 5
      do m = 1, 5
        y(:, j) = y(:, j) - a(:, m) * x(m, j)
      end do
    end do
  end subroutine multiply_block

  subroutine invert(b, c, r) ! c = inverse(b) c, r = inverse(b) r
    real(dp), intent(inout) :: b(5, 5), c(5, 5), r(5)
    real(dp) :: factor
    integer :: p, m
    do p = 1, 5
      factor = 1 / b(p, p)
      b(p, p + 1:) = b(p, p + 1:) * factor
      c(p, :) = c(p, :) * factor
      r(p) = r(p) * factor
      do m = 1, 5
        if (m == p) cycle
        factor = b(m, p)
        b(m, p + 1:) = b(m, p + 1:) - factor * b(p, p + 1:)
        c(m, :) = c(m, :) - factor * c(p, :)
        r(m) = r(m) - factor * r(p)
      end do
    end do
  end subroutine invert
end module bt

! ---- SP: scalar pentadiagonal systems ----------------------------------------------------------------------

module sp
  use flow
  implicit none
  real(dp), parameter :: half_root = 0.70710678118654752440_dp
contains
  subroutine run_sp(points, steps, step)
    integer, intent(in) :: points, steps
    real(dp), intent(in) :: step
    call set_up(points, step)
    call run(step_sp, steps, .true.)
  end subroutine run_sp

  subroutine step_sp()
    integer :: i, j, k
    call compute_rhs()
    rhs(:, 2:n-1, 2:n-1, 2:n-1) = dt * rhs(:, 2:n-1, 2:n-1, 2:n-1)
    do k = 2, n - 1
      do j = 2, n - 1
        do i = 2, n - 1
          call to_characteristic(u(:, i, j, k), rhs(:, i, j, k))
        end do
      end do
    end do
    do k = 2, n - 1
      do j = 2, n - 1
        call solve_line(1, u(:, :, j, k), rhs(:, :, j, k))
      end do
    end do
    do k = 2, n - 1
      do j = 2, n - 1
        do i = 2, n - 1
          call x_to_y(rhs(:, i, j, k))
        end do
      end do
    end do
    do k = 2, n - 1
      do i = 2, n - 1
        call solve_line(2, u(:, i, :, k), rhs(:, i, :, k))
      end do
    end do
    do k = 2, n - 1
      do j = 2, n - 1
        do i = 2, n - 1
          call y_to_z(rhs(:, i, j, k))
        end do
      end do
    end do
    do j = 2, n - 1
      do i = 2, n - 1
        call solve_line(3, u(:, i, j, :), rhs(:, i, j, :))
      end do
    end do
    do k = 2, n - 1
      do j = 2, n - 1
        do i = 2, n - 1
          call to_conservative(u(:, i, j, k), rhs(:, i, j, k))
        end do
      end do
    end do
    u(:, 2:n-1, 2:n-1, 2:n-1) = u(:, 2:n-1, 2:n-1, 2:n-1) + rhs(:, 2:n-1, 2:n-1, 2:n-1)
  end subroutine step_sp

  subroutine to_characteristic(w, r)
    real(dp), intent(in) :: w(5)
    real(dp), intent(inout) :: r(5)
    real(dp) :: i, s(3), k, c2, p, d(3), t
    i = 1 / w(1)
    s = w(2:4) * i
    k = 0.5_dp * (s(1)**2 + s(2)**2 + s(3)**2)
    c2 = k1 * k2 * (w(5) * i - k)
    d = i * (s * r(1) - r(2:4))
    p = k2 * (k * r(1) - s(1) * r(2) - s(2) * r(3) - s(3) * r(4) + r(5)) / c2
    t = half_root * i * sqrt(c2) * p
    r(1) = r(1) - p
    r(2) = -d(3)
    r(3) = d(2)
    r(4) = t - half_root * d(1)
    r(5) = t + half_root * d(1)
  end subroutine to_characteristic

  subroutine x_to_y(r)
    real(dp), intent(inout) :: r(5)
    real(dp) :: s
    s = 0.5_dp * (r(4) + r(5))
    r = [-r(2), r(1), half_root * (r(4) - r(5)), s - half_root * r(3), s + half_root * r(3)]
  end subroutine x_to_y

  subroutine y_to_z(r)
    real(dp), intent(inout) :: r(5)
    real(dp) :: s
    s = 0.5_dp * (r(4) + r(5))
    r = [half_root * (r(4) - r(5)), -r(3), r(2), s - half_root * r(1), s + half_root * r(1)]
  end subroutine y_to_z

  subroutine to_conservative(w, r)
    real(dp), intent(in) :: w(5)
    real(dp), intent(inout) :: r(5)
    real(dp) :: i, s(3), k, c2, t, mass, push
    i = 1 / w(1)
    s = w(2:4) * i
    k = 0.5_dp * (s(1)**2 + s(2)**2 + s(3)**2)
    c2 = k1 * k2 * (w(5) * i - k)
    t = half_root * w(1) / sqrt(c2) * (r(4) + r(5))
    push = half_root * w(1) * (r(4) - r(5))
    mass = r(3) + t
    r = [mass, s(1) * mass - w(1) * r(2), s(2) * mass + w(1) * r(1), s(3) * mass + push, &
         k * mass + w(1) * (s(2) * r(1) - s(1) * r(2)) + c2 / k2 * t + s(3) * push]
  end subroutine to_conservative

  ! Three pentadiagonal systems: for v_a (first three unknowns), v_a + c and v_a - c.
  subroutine solve_line(axis, w, r)
    integer, intent(in) :: axis
    real(dp), intent(in) :: w(5, n)
    real(dp), intent(inout) :: r(5, n)
    real(dp) :: speed(n), sound(n), nu(n), lhs(5, n), plus(5, n), minus(5, n), i, s(3), e
    integer :: l

    do l = 1, n
      i = 1 / w(1, l)
      s = w(2:4, l) * i
      speed(l) = dt * convect * s(axis)
      sound(l) = dt * convect * sqrt(k1 * k2 * (w(5, l) * i - 0.5_dp * (s(1)**2 + s(2)**2 + s(3)**2)))
      nu(l) = dt * diffuse * (diffusion(axis) + k34 * k15 * i)
    end do
    e = dt * dissipation
    do l = 2, n - 1
      lhs(1, l) = e
      lhs(2, l) = -speed(l - 1) - nu(l - 1) - 4 * e
      lhs(3, l) = 1 + 2 * nu(l) + 6 * e
      lhs(4, l) = speed(l + 1) - nu(l + 1) - 4 * e
      lhs(5, l) = e
    end do
    lhs(:, 2) = lhs(:, 2) + e * [-1, 4, -1, 0, 0]
    lhs(1, 3) = lhs(1, 3) - e
    lhs(5, n - 2) = lhs(5, n - 2) - e
    lhs(:, n - 1) = lhs(:, n - 1) + e * [0, 0, -1, 4, -1]
    do l = 2, n - 1
      plus(:, l) = lhs(:, l)
      plus(2, l) = plus(2, l) - sound(l - 1)
      plus(4, l) = plus(4, l) + sound(l + 1)
      minus(:, l) = lhs(:, l)
      minus(2, l) = minus(2, l) + sound(l - 1)
      minus(4, l) = minus(4, l) - sound(l + 1)
    end do
    ! the fixed points at the ends have no change
    lhs(2, 2) = 0
    plus(2, 2) = 0
    minus(2, 2) = 0
    do l = 2, n - 1
      call eliminate(1, 3, l, lhs, r)
      call eliminate(4, 4, l, plus, r)
      call eliminate(5, 5, l, minus, r)
    end do
    r(:3, n - 2) = r(:3, n - 2) - lhs(4, n - 2) * r(:3, n - 1)
    r(4, n - 2) = r(4, n - 2) - plus(4, n - 2) * r(4, n - 1)
    r(5, n - 2) = r(5, n - 2) - minus(4, n - 2) * r(5, n - 1)
    do l = n - 3, 2, -1
      r(:3, l) = r(:3, l) - lhs(4, l) * r(:3, l + 1) - lhs(5, l) * r(:3, l + 2)
      r(4, l) = r(4, l) - plus(4, l) * r(4, l + 1) - plus(5, l) * r(4, l + 2)
      r(5, l) = r(5, l) - minus(4, l) * r(5, l + 1) - minus(5, l) * r(5, l + 2)
    end do
  end subroutine solve_line

  ! Divides row l by its pivot and removes its unknown from the two rows after it.
  subroutine eliminate(first, last, l, a, r)
    integer, intent(in) :: first, last, l
    real(dp), intent(inout) :: a(5, n), r(5, n)
    real(dp) :: factor
    factor = 1 / a(3, l)
    a(4:5, l) = a(4:5, l) * factor
    r(first:last, l) = r(first:last, l) * factor
    if (l < n - 1) then
      a(3:4, l + 1) = a(3:4, l + 1) - a(2, l + 1) * a(4:5, l)
      r(first:last, l + 1) = r(first:last, l + 1) - a(2, l + 1) * r(first:last, l)
    end if
    if (l < n - 2) then
      a(2:3, l + 2) = a(2:3, l + 2) - a(1, l + 2) * a(4:5, l)
      r(first:last, l + 2) = r(first:last, l + 2) - a(1, l + 2) * r(first:last, l)
    end if
  end subroutine eliminate
end module sp

program npb_plain
  use ep
  use is
  use cg
  use mg
  use ft
  use lu, only: run_lu
  use bt, only: run_bt
  use sp, only: run_sp
  implicit none
  real(dp), parameter :: small(0:2) = [-3.0_dp / 8, 1.0_dp / 32, -1.0_dp / 64]
  real(dp), parameter :: large(0:2) = [-3.0_dp / 17, 1.0_dp / 33, -1.0_dp / 61]
  character(2) :: app
  character(1) :: class

  call get_command_argument(1, app)
  call get_command_argument(2, class)
  select case (app//'.'//class)
  case ('ep.S'); call run_ep(24)
  case ('ep.W'); call run_ep(25)
  case ('ep.A'); call run_ep(28)
  case ('is.S'); call run_is(16, 11)
  case ('is.W'); call run_is(20, 16)
  case ('is.A'); call run_is(23, 19)
  case ('cg.S'); call run_cg(1400, 7, 15, 10.0_dp)
  case ('cg.W'); call run_cg(7000, 8, 15, 12.0_dp)
  case ('cg.A'); call run_cg(14000, 11, 15, 20.0_dp)
  case ('mg.S'); call run_mg(5, 4, small)
  case ('mg.W'); call run_mg(7, 4, small)
  case ('mg.A'); call run_mg(8, 4, small)
  case ('ft.S'); call run_ft(64, 64, 64, 6)
  case ('ft.W'); call run_ft(128, 128, 32, 6)
  case ('ft.A'); call run_ft(256, 256, 128, 6)
  case ('lu.S'); call run_lu(12, 50, 0.5_dp)
  case ('lu.W'); call run_lu(33, 300, 1.5e-3_dp)
  case ('lu.A'); call run_lu(64, 250, 2.0_dp)
  case ('sp.S'); call run_sp(12, 100, 0.015_dp)
  case ('sp.W'); call run_sp(36, 400, 0.0015_dp)
  case ('sp.A'); call run_sp(64, 400, 0.0015_dp)
  case ('bt.S'); call run_bt(12, 60, 0.010_dp)
  case ('bt.W'); call run_bt(24, 200, 0.0008_dp)
  case ('bt.A'); call run_bt(64, 200, 0.0008_dp)
  case default; error stop 'npb_plain APP CLASS: ep, is, cg, mg, ft, lu, sp, bt; S, W, A'
  end select
end program npb_plain
